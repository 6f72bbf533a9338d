package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// Where all commands that speak to a daemon learn whose certificates to trust.
const (
	authorityFlag = "ca"
	authorityEnv  = "PUBSUB_CA"
)

// An authority is whose certificates a command trusts: those in the file that the flag
// names, else the environment, and nobody else's; without either the system's.
type authority struct {
	file string
	flag *pflag.Flag
}

func bindAuthority(f *pflag.FlagSet) *authority {
	a := &authority{}
	f.StringVar(&a.file, authorityFlag, "", "trust certificates of the authorities in this PEM `FILE`, and no others; without it $"+authorityEnv+" counts")
	a.flag = f.Lookup(authorityFlag)
	return a
}

// said returns what counts, and what said it.
func (a *authority) said() (file, where string) {
	if a.flag.Changed {
		return a.file, "--" + authorityFlag
	}
	return os.Getenv(authorityEnv), authorityEnv
}

// tls returns the configuration of a client. The error is a usage error.
func (a *authority) tls() (*tls.Config, error) {
	file, where := a.said()
	if file == "" && !a.flag.Changed {
		return &tls.Config{}, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", where, err)}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, usageError{fmt.Errorf("%s: %s holds no certificate in PEM", where, file)}
	}
	return &tls.Config{RootCAs: roots}, nil
}
