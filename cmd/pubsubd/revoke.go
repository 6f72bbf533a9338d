package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func revokeCommand() *cobra.Command {
	r := revocation{}
	cmd := &cobra.Command{
		Use:   "revoke",
		Short: "Revoke the tokens of a subject or one token, or end a session",
		Long: `Revoke tokens that are still valid, or end one session. When the command returns, the
daemon has the revocation on disk, and has ended the sessions that it affects. Use
one of:

  --subject   revokes all tokens of a user that were issued until now. Tokens that
              are issued later stay valid.
  --token-id  revokes the token with this id (jti).
  --session   ends one session, by its number in pubsubd sessions. The daemon stores
              nothing: the client may open another session.

To revoke API keys, use pubsubd key revoke. To revoke tokens, the daemon needs a file
for revocations, its setting auth.revocations.

The admin listener accepts a revocation only with the operators' key, or over its Unix
socket.`,
		Example: `  pubsubd revoke --subject alice --admin-key-file /etc/pubsubd/admin.key
  pubsubd revoke --session 17 --admin unix:/run/pubsubd/admin.sock`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	r.admin = bindAdmin(f)
	r.admin.bindAdminKey(f)
	f.StringVar(&r.what.Subject, "subject", "", "revoke all tokens of this `user`")
	f.StringVar(&r.what.TokenID, "token-id", "", "revoke the token with this `id`")
	f.Uint64Var(&r.what.Session, "session", 0, "end the session with this `number`")
	f.DurationVar(&r.timeout, "timeout", 10*time.Second, "time limit of the request")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r.out = cmd.OutOrStdout()
		return r.run()
	}
	return cmd
}

// A revocation is what the command line asks for.
type revocation struct {
	admin   *address
	what    wire.RevokeRequest
	timeout time.Duration
	out     io.Writer
}

func (r *revocation) run() error {
	said := 0
	for _, is := range []bool{r.what.Subject != "", r.what.TokenID != "", r.what.Session != 0} {
		if is {
			said++
		}
	}
	if said != 1 {
		return usageError{errors.New("use one of --subject, --token-id and --session")}
	}
	base, err := r.admin.url()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	var result wire.RevokeResult
	if err := r.admin.askWith(ctx, http.MethodPost, base.JoinPath("revocations"), r.what, &result); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "revoked; sessions ended: %d\n", result.Ended)
	return nil
}
