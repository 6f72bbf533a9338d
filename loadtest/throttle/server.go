package throttle

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/child"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
)

// startServer starts the server with the trial's limits, if it is not one that runs.
// The function that it returns ends it, and tells whether it had ended before.
func (t *trial) startServer(ctx context.Context, secret string, p loadtest.Progress) (stop func() error, err error) {
	if t.cfg.Target != "" {
		address, _, err := loadtest.Resolve(ctx, t.cfg.Target)
		if err != nil {
			return nil, err
		}
		t.authority, t.pid = address.String(), t.cfg.ServerPID
		return func() error { return nil }, nil
	}
	flags := t.flags()
	c, err := child.Server(ctx, slices.Concat(t.cfg.ServerCommand, flags), webhook.SecretVariable+"="+secret)
	if err != nil {
		return nil, err
	}
	t.authority, t.pid = c.Addresses().Public, c.PID()
	p.Notice(fmt.Sprintf("%v: started a server as process %d at http://%s, with %s", t.setting, t.pid, t.authority, strings.Join(flags, " ")))
	return func() error {
		ended := c.Ended()
		_ = c.Stop()
		return ended
	}, nil
}

// flags set the server's limits and its hook. All calls that the server lets in may
// be at the back end at once: it is not the hook's own limit that is measured.
func (t *trial) flags() []string {
	c, s := t.cfg, t.setting
	flags := []string{
		"--limits-sessions=" + strconv.Itoa(s.Sessions), "--limits-calls=" + strconv.Itoa(s.Calls),
		"--limits-wait=" + c.Wait.String(), "--limits-pending-sessions=" + strconv.Itoa(c.PendingSessions), "--limits-waiting-calls=" + strconv.Itoa(c.WaitingCalls),
		"--hooks-publish-url=" + t.backend.url(), "--hooks-publish-timeout=" + c.hookTimeout(s).String(),
		"--hooks-publish-calls=" + strconv.Itoa(max(s.Calls, c.Users)),
	}
	if c.CallsPerSession > 0 {
		// Between two sessions nobody subscribes, and a user may wait for the next for
		// longer than histories are kept by default.
		flags = append(flags, "--history-age=24h")
	}
	return flags
}

// hookTimeout is how long a call of the hook may take: twice what it should, with
// all that are let in one behind the other where the back end's workers are few.
func (c *Config) hookTimeout(s Setting) time.Duration {
	turns := 1
	if at := min(s.Calls, c.Users); c.BackendWorkers > 0 {
		turns = (at + c.BackendWorkers - 1) / c.BackendWorkers
	}
	return 2*time.Duration(turns)*c.CallTime + c.spare
}
