package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Where the commands for clients get a token or an API key. It is never an argument, because
// every user of a machine can see the arguments of its commands.
const (
	tokenFileFlag = "token-file"
	tokenEnv      = "PUBSUBD_TOKEN"
)

// A bearer is the token or API key that a command sends, if any. A nil bearer has none. It is
// for one goroutine.
type bearer struct {
	file  string
	flag  *pflag.Flag
	first string // the token that was read first; empty: none was read
}

func bindBearer(f *pflag.FlagSet) *bearer {
	b := &bearer{}
	f.StringVar(&b.file, tokenFileFlag, "", "send the token or API key in this `FILE`; the command reads the file again before the token expires and when the daemon refuses it; default: the token in $"+tokenEnv+"; setting both is an error")
	b.flag = f.Lookup(tokenFileFlag)
	return b
}

// token returns the token of the first requests, or "" if there is none. It reads a file only
// once, which may be a pipe. The error is a usage error.
func (b *bearer) token() (string, error) {
	switch {
	case b == nil:
		return "", nil
	case b.first != "":
		return b.first, nil
	}
	token, err := b.read()
	if err != nil {
		return "", usageError{err}
	}
	b.first = token
	return token, nil
}

// read reads the token, or returns "" if there is none.
func (b *bearer) read() (string, error) {
	token, where := variable(tokenEnv)
	switch {
	case b.flag.Changed && token != "":
		return "", fmt.Errorf("--%s and %s are both set: use one of them", tokenFileFlag, where)
	case b.flag.Changed:
		text, err := readToken(b.file)
		if err != nil {
			return "", fmt.Errorf("--%s: %w", tokenFileFlag, err)
		}
		return oneToken(text, "--"+tokenFileFlag+": "+b.file)
	case token != "":
		return oneToken(token, where)
	}
	return "", nil
}

// readToken reads a file, and of a large one more than a token may have.
func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTokenText+1))
	return string(text), err
}

// oneToken returns the token in a text. Its errors do not quote the text.
func oneToken(text, where string) (string, error) {
	token := strings.TrimSpace(strings.TrimPrefix(text, config.ByteOrderMark))
	switch {
	case token == "":
		return "", fmt.Errorf("%s is empty: it must have a token or an API key", where)
	case len(text) > maxTokenText:
		return "", fmt.Errorf("%s must have at most %d bytes: one token or API key, and nothing else", where, maxTokenText)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf(`%s must have one token or API key on one line, and nothing else: no spaces, no "Bearer"`, where)
	}
	return token, nil
}

// options make a client send the token. The error is a usage error.
func (b *bearer) options() ([]pubsub.Option, error) {
	token, err := b.token()
	if err != nil || token == "" {
		return nil, err
	}
	next := b.token
	return []pubsub.Option{pubsub.WithTokenSource(func(context.Context) (string, error) {
		defer func() { next = b.read }()
		return next()
	})}, nil
}

// missing adds to a refusal how to send a token, if none was sent.
func (b *bearer) missing(err error) error {
	if b == nil || b.first != "" || !errors.Is(err, &wire.Problem{Code: wire.CodeUnauthorized}) {
		return err
	}
	return fmt.Errorf("%w: set a token or an API key with --%s or %s", err, tokenFileFlag, tokenEnv)
}
