package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/token"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create keys and tokens, and explain tokens",
		Long: `Create keys and tokens, and explain tokens. A token is a JWT whose claim pubsub has the
rights of a client. Your application issues tokens for its users, in any language, so
you need these commands only to begin, in scripts, and to find mistakes.`,
		Example: `  pubsubd token keygen --out key.pem
  pubsubd serve --auth-keys key.pem.pub &
  pubsubd token issue --key key.pem --subject alice --allow 'subscribe,publish:chat.>' > alice.token
  pubsubd token inspect --key key.pem.pub --right publish --topic chat.1 < alice.token`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(keygenCommand(), issueCommand(), inspectCommand())
	return cmd
}

func keygenCommand() *cobra.Command {
	var out, algorithm string
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Create a key that signs tokens",
		Long: `Create a pair of keys in PEM: FILE, which signs tokens and which only your application
needs, and FILE.pub, which verifies tokens and belongs in the daemon's auth.keys. With
--type HS256, the only file is FILE, a JWK that both need. The command never overwrites
a file.`,
		Args: usageArgs(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&out, "out", "", "`FILE` of the private key; required")
	cmd.Flags().StringVar(&algorithm, "type", "EdDSA", "`algorithm` of the key: EdDSA, ES256, ES384, RS256 or HS256")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions([]string{"EdDSA", "ES256", "ES384", "RS256", "HS256"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(*cobra.Command, []string) error {
		if out == "" {
			return usageError{errors.New("name the file of the key: --out key.pem")}
		}
		private, public, err := token.GenerateKey(algorithm)
		if err != nil {
			return usageError{fmt.Errorf("--type %q: %w", algorithm, err)}
		}
		if err := writeNew(out, private, 0o600); err != nil || algorithm == "HS256" {
			return err
		}
		return writeNew(out+".pub", public, 0o644)
	}
	return cmd
}

// writeNew writes a file that must not exist, and syncs it. If that fails, it removes the file.
func writeNew(path string, text []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w: name another file, because the command never overwrites one", err)
	}
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(path)) // otherwise the next attempt would find it
	}
	return err
}

// An issue is what the command line of token issue asks for.
type issue struct {
	token.Draft
	key    string
	rights string
	allow  []string
	claims []string
}

func issueCommand() *cobra.Command {
	i := issue{}
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Sign a token and print it",
		Long: `Sign a token with a private key and print it on standard output. The key is a file
in PEM, or a JWK with its private members; for HMAC a JWK of type oct.

Rights are subscribe, publish, history, presence, delete and manage. Topics may be
patterns, in which $sub stands for the subject.`,
		Example: `  pubsubd token issue --key key.pem --subject alice --allow 'subscribe,publish:chat.>' --allow 'subscribe:inbox.$sub'
  pubsubd token issue --key key.pem --subject alice --ttl 10m --claim name=Alice --rights '[{"topics":["chat.>"],"allow":["subscribe"]}]'`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.StringVar(&i.key, "key", "", "`FILE` of the private key; required")
	f.StringVar(&i.Subject, "subject", "", "the `user`, sub; required")
	f.StringArrayVar(&i.allow, "allow", nil, allowUsage)
	f.StringVar(&i.rights, "rights", "", "all rights as `JSON`, instead of --allow")
	f.DurationVar(&i.TTL, "ttl", time.Hour, "lifetime of the token; at most the daemon's auth.token_max_age")
	f.StringVar(&i.ID, "id", "", "`id` of the token, jti, with which you can revoke it")
	f.StringVar(&i.Issuer, "issuer", "", "issuer, iss; must equal the daemon's auth.issuer")
	f.StringVar(&i.Audience, "audience", "", "audience, aud; must equal the daemon's auth.audience")
	f.StringVar(&i.Type, "type", "JWT", "typ in the header; must equal the daemon's auth.type")
	f.StringArrayVar(&i.claims, "claim", nil, "add a claim, `name=value`; the value is JSON, or else text; repeatable")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		signed, err := i.sign()
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), signed)
		}
		return err
	}
	return cmd
}

func (i *issue) sign() (string, error) {
	switch {
	case i.key == "":
		return "", usageError{errors.New("name the file of the private key: --key key.pem (pubsubd token keygen creates one)")}
	case i.Subject == "":
		return "", usageError{errors.New("name the user: --subject alice")}
	case i.TTL < time.Second:
		return "", usageError{fmt.Errorf("--ttl must be at least 1s; got %s", i.TTL)}
	case i.rights != "" && len(i.allow) > 0:
		return "", usageError{errors.New("use --rights or --allow, not both")}
	}
	var err error
	if i.Rights = []byte(i.rights); len(i.allow) > 0 {
		if i.Rights, err = parseAllow(i.allow, i.Subject); err != nil {
			return "", err
		}
	} else if i.rights == "" {
		i.Rights = nil
	}
	if i.Claims, err = parseClaims(i.claims); err != nil {
		return "", err
	}
	key, err := config.ReadText(i.key)
	if err != nil {
		return "", fmt.Errorf("--key: %w", err)
	}
	i.Issued = time.Now()
	signed, err := token.Issue(key, i.Draft)
	if err != nil {
		return "", usageError{fmt.Errorf("cannot issue the token: %w", err)}
	}
	return signed, nil
}

// parseClaims reads --claim. The error is a usage error.
func parseClaims(texts []string) (map[string]jsontext.Value, error) {
	claims := make(map[string]jsontext.Value)
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if _, double := claims[name]; !ok || name == "" || double {
			return nil, usageError{fmt.Errorf("--claim %q: write name=value, each name once", text)}
		}
		if !json.Valid([]byte(value)) {
			quoted, err := json.Marshal(value)
			if err != nil {
				return nil, err
			}
			value = string(quoted)
		}
		claims[name] = jsontext.Value(value)
	}
	return claims, nil
}

// An inspection is what the command line of token inspect asks for.
type inspection struct {
	file, right, topic string
	timeout            time.Duration
	in                 io.Reader
	out                io.Writer
}

// inspectSettings are the settings that matter to token inspect. It takes the others, too.
var inspectSettings = []string{"config", "auth-keys", "auth-jwks", "auth-issuer", "auth-audience", "auth-type", "auth-token-max-age", "auth-public-claims"}

func inspectCommand() *cobra.Command {
	i := inspection{}
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Explain a token, and why the daemon would refuse it",
		Long: `Read a token from standard input or a file, and explain what it contains. With keys
(--key, short for --auth-keys) or other settings of a daemon (--config, --auth-…,
PUBSUBD_AUTH_…), check whether the daemon would accept the token, or why not. With
--right and --topic, show which entry of its rights permits this, or comes closest.

The exit code is 1 if the token is refused, or lacks the right.`,
		Example: `  pubsubd token inspect --config pubsubd.yaml --right subscribe --topic chat.1 < alice.token
  pubsubd token inspect --key key.pem.pub --file alice.token`,
		Args: usageArgs(cobra.NoArgs),
	}
	loader := config.Bind(cmd.Flags())
	f := cmd.Flags()
	f.VisitAll(func(flag *pflag.Flag) { flag.Hidden = !slices.Contains(inspectSettings, flag.Name) })
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "key" {
			name = "auth-keys"
		}
		return pflag.NormalizedName(name)
	})
	f.StringVar(&i.file, "file", "", "read the token from `FILE`; default: standard input")
	f.StringVar(&i.right, "right", "", "explain this `right`: subscribe, publish, history, presence or delete")
	f.StringVar(&i.topic, "topic", "", "explain the right on this `topic` or pattern")
	f.DurationVar(&i.timeout, "timeout", 10*time.Second, "time limit for the server of auth.jwks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := loader.Load(os.Environ())
		if err != nil {
			return usageError{err}
		}
		i.in, i.out = cmd.InOrStdin(), cmd.OutOrStdout()
		return i.run(loaded.Config)
	}
	return cmd
}

// maxTokenText bounds what is read as a token.
const maxTokenText = 64 << 10

func (i *inspection) run(cfg config.Config) error {
	if (i.right == "") != (i.topic == "") {
		return usageError{errors.New("use --right and --topic together")}
	}
	text, err := i.read()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), i.timeout)
	defer cancel()
	found, err := token.Inspect(ctx, cfg.Auth, text, time.Now())
	if err != nil {
		return err
	}
	table := newTable(i.out)
	for _, row := range found.Says {
		fmt.Fprintf(table, "%s\t%s\n", row[0], printable(row[1]))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fine := i.verdict(found)
	allowed, err := i.explain(found)
	if err != nil || fine && allowed {
		return err
	}
	return exitWith(exitRunTime)
}

// verdict says whether the daemon would accept the token.
func (i *inspection) verdict(found token.Inspection) (fine bool) {
	switch {
	case !found.Checked:
		fmt.Fprintln(i.out, "\nNot verified: name a key with --key, or a daemon's settings with --config.")
	case found.Refused != nil:
		fmt.Fprintf(i.out, "\nRefused (%s): %s.\nRemedy: %s.\n", found.Refused.Code, found.Refused.Detail, found.Refused.Remedy)
		return false
	default:
		fmt.Fprintln(i.out, "\nAccepted: the signature and the claims are valid. Revocations were not checked.")
	}
	return true
}

// explain says whether the token has the right that was asked for.
func (i *inspection) explain(found token.Inspection) (allowed bool, err error) {
	if i.right == "" {
		return true, nil
	}
	allowed, why, err := found.Rights.Explain(auth.Right(i.right), i.topic)
	if err != nil {
		return false, usageError{err}
	}
	answer := "No"
	if allowed {
		answer = "Yes"
	}
	fmt.Fprintf(i.out, "\n%s on %s: %s. %s\n", i.right, i.topic, answer, printable(why))
	if found.Note != "" && !allowed {
		fmt.Fprintln(i.out, found.Note)
	}
	return allowed, nil
}

// read returns the token, even if it is written as in a header.
func (i *inspection) read() (string, error) {
	if i.file != "" {
		f, err := os.Open(i.file)
		if err != nil {
			return "", fmt.Errorf("--file: %w", err)
		}
		defer f.Close()
		i.in = f
	}
	text, err := io.ReadAll(io.LimitReader(i.in, maxTokenText))
	token := strings.TrimSpace(strings.TrimPrefix(string(text), config.ByteOrderMark))
	token = strings.TrimSpace(strings.TrimPrefix(token, "Bearer ")) // as in the header
	if err == nil && token == "" {
		err = usageError{errors.New("there is no token: write it to standard input, or name its file with --file")}
	}
	return token, err
}
