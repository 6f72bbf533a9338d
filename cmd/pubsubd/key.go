package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/internal/auth"
)

// apiKeysEnv is where serve reads the file's name from, too.
const apiKeysEnv = "PUBSUBD_AUTH_API_KEYS"

func keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Create, list and revoke API keys of back ends",
		Long: `Create, list and revoke API keys, with which back ends publish and subscribe. All keys
are in one file, that of the daemon's setting auth.api_keys, with a JSON object on each
line. The file has only a hash of each key, so nobody can get a key from it. The daemon
reads the file within a second after a change, without a restart or a signal.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeyCommand(), listKeysCommand(), revokeKeyCommand())
	return cmd
}

// bindKeyFile adds --file, which names the file of API keys.
func bindKeyFile(f *pflag.FlagSet) *string {
	file := f.String("file", os.Getenv(apiKeysEnv), "`FILE` of the API keys; default: $"+apiKeysEnv)
	f.Lookup("file").DefValue = "" // the help is the same everywhere
	return file
}

// errNoKeyFile is a usage error.
var errNoKeyFile = usageError{fmt.Errorf("name the file of the API keys: --file, or %s", apiKeysEnv)}

func newKeyCommand() *cobra.Command {
	var name, out string
	var allow []string
	var validFor time.Duration
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Create an API key, and print it once",
		Long: `Create an API key and print it on standard output, or write it to the file of --out,
which only you can read. The key exists nowhere else, because the file of API keys gets
only its hash. Anyone who has the key has its rights, under its name. Back ends send it
as Authorization: Bearer psk_….

Rights are subscribe, publish, history, presence, delete and manage. Topics may be
patterns, in which $sub stands for the name of the key.`,
		Example: `  pubsubd key new --name billing --allow 'publish:prices.>,orders.*' --file /var/lib/pubsubd/keys
  pubsubd key new --name worker --allow subscribe,history:jobs --valid-for 2160h --out worker.key`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	file := bindKeyFile(f)
	f.StringVar(&name, "name", "", "`name` of the principal; each key needs a different name")
	f.StringArrayVar(&allow, "allow", nil, allowUsage)
	f.StringVar(&out, "out", "", "write the key to this new `FILE` with mode 0600, instead of printing it; the command never overwrites a file")
	f.DurationVar(&validFor, "valid-for", 0, "lifetime of the key; 0: until it is revoked")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *file == "":
			return errNoKeyFile
		case name == "":
			return usageError{errors.New("name the key: --name billing")}
		case len(allow) == 0:
			return usageError{errors.New("set the rights of the key: --allow 'publish:prices.>'")}
		case validFor < 0:
			return usageError{fmt.Errorf("--valid-for %s: use a duration such as 2160h, or 0", validFor)}
		}
		secret, k, err := draftKey(name, allow, validFor)
		if err != nil {
			return err
		}
		// The key is handed over first: one that is in force and that nobody has would have to be revoked.
		if out != "" {
			if err := writeNew(out, []byte(secret+"\n"), 0o600); err != nil {
				return fmt.Errorf("--out: %w", err)
			}
		}
		err = addKey(*file, k)
		switch {
		case err != nil && out != "":
			return errors.Join(err, os.Remove(out))
		case err == nil && out == "":
			fmt.Fprintln(cmd.OutOrStdout(), secret)
		}
		return err
	}
	return cmd
}

// draftKey returns a new key, and the line of the file of API keys for it.
func draftKey(name string, allow []string, validFor time.Duration) (string, auth.APIKey, error) {
	rights, err := parseAllow(allow, name)
	if err != nil {
		return "", auth.APIKey{}, err
	}
	now, expires := time.Now(), time.Time{}
	if validFor > 0 {
		expires = now.Add(validFor)
	}
	secret, k, err := auth.NewAPIKey(name, rights, now, expires)
	if err != nil {
		err = usageError{err}
	}
	return secret, k, err
}

// addKey adds a key to the file.
func addKey(file string, k auth.APIKey) error {
	return auth.EditAPIKeys(file, func(keys []auth.APIKey) ([]auth.APIKey, error) {
		if slices.ContainsFunc(keys, func(other auth.APIKey) bool { return other.Name == k.Name }) {
			return nil, fmt.Errorf("%s has a key named %q: choose a different name, or revoke that key first", file, k.Name)
		}
		return append(keys, k), nil
	})
}

func listKeysCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List API keys: names, rights and dates",
		Args:  usageArgs(cobra.NoArgs),
	}
	file := bindKeyFile(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each key, one on each line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *file == "" {
			return errNoKeyFile
		}
		keys, err := auth.ReadAPIKeys(*file)
		if err != nil {
			return err
		}
		if asJSON {
			return keyLines(cmd.OutOrStdout(), keys)
		}
		return keyTable(cmd.OutOrStdout(), keys)
	}
	return cmd
}

// keyLines prints keys for programs, without their hashes.
func keyLines(out io.Writer, keys []auth.APIKey) error {
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for _, k := range keys {
		k.Hash = ""
		if err := lines.Encode(k); err != nil {
			return err
		}
	}
	return nil
}

func keyTable(out io.Writer, keys []auth.APIKey) error {
	date := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	table := newTable(out)
	fmt.Fprintln(table, "NAME\tCREATED\tEXPIRES\tRIGHTS")
	for _, k := range keys {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", printable(k.Name), cmp.Or(date(k.Created), "-"), cmp.Or(date(k.Expires), "never"), showRights(k.Rights))
	}
	return table.Flush()
}

func revokeKeyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke an API key",
		Long: `Revoke an API key. A running daemon refuses the key within a second, and ends its
sessions.`,
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	file := bindKeyFile(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *file == "" {
			return errNoKeyFile
		}
		return auth.EditAPIKeys(*file, func(keys []auth.APIKey) ([]auth.APIKey, error) {
			rest := slices.DeleteFunc(slices.Clone(keys), func(k auth.APIKey) bool { return k.Name == args[0] })
			if len(rest) == len(keys) {
				return nil, fmt.Errorf("%s has no key named %q: pubsubd key list shows the names", *file, args[0])
			}
			return rest, nil
		})
	}
	return cmd
}
