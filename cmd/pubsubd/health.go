package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

func healthCommand() *cobra.Command {
	var admin *address
	var live bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check whether the daemon is ready, and exit with 0 if it is",
		Long: `Check whether the daemon is ready to serve clients, or with --live whether it runs at
all. The exit code is 0 if so. Otherwise it is 1, with the reason on standard error.

Use it for health checks in containers whose image has no other client. It finds the
daemon by the environment of the container: PUBSUBD_LISTEN_ADMIN. If a flag or a file
sets the daemon's admin listener, use --admin or PUBSUBD_ADMIN.`,
		Example: `  HEALTHCHECK CMD ["pubsubd", "health"]`,
		Args:    usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	admin = bindAdmin(f)
	f.BoolVar(&live, "live", false, "check only whether the daemon runs: it may be draining")
	f.DurationVar(&timeout, "timeout", 2*time.Second, "time limit of the check")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path := "readyz"
		if live {
			path = "livez"
		}
		if err := askHealth(admin, path, timeout); err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), "ok")
		return nil
	}
	return cmd
}

// maxReasonBytes bounds what is read of why a daemon is not ready.
const maxReasonBytes = 4096

// askHealth returns nil if the daemon says ok.
func askHealth(admin *address, path string, timeout time.Duration) error {
	base, err := admin.url()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	resp, err := admin.send(ctx, http.MethodGet, base.JoinPath(path), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, maxReasonBytes))
	switch reason := string(bytes.TrimSpace(said)); {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusServiceUnavailable:
		return errors.New(printable(reason))
	case resp.StatusCode != http.StatusOK || reason != "ok":
		return refusal(resp)
	}
	return nil
}
