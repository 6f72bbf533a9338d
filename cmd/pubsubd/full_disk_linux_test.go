package main

import (
	"errors"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// fileSizeLimit sets the size at which writes of the process fail.
func (s *served) fileSizeLimit(bytes uint64) {
	s.Helper()
	require.NoError(s, unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil))
}

// The disk takes nothing more. Publishes are refused with the reason, and subscribers still
// get what was published before. When there is space again, publishes succeed, without a
// restart.
func TestAFullDiskRefusesPublishesWithTheReason(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s := serveProcess(t, "--store", dir)
	s.post("/v1/topics/a/messages", "1")
	s.fileSizeLimit(1)

	client, err := pubsub.New(s.public, pubsub.WithPublishRetry(0))
	require.NoError(t, err)
	defer client.Close()
	_, err = client.PublishJSON(t.Context(), "a", 2)
	var problem *wire.Problem
	require.True(t, errors.As(err, &problem), "%v", err)
	require.Equal(t, http.StatusServiceUnavailable, problem.Status)
	require.Equal(t, wire.CodeOverloaded, problem.Code)
	require.Contains(t, problem.Detail, "the server cannot write to its disk: file too large")
	require.NotContains(t, problem.Detail+problem.Remedy, dir)
	s.waitForMetric("pubsubd_store_faulty 1")
	s.waitForMetric(`pubsubd_store_refused_total{reason="disk_full"} 1`)

	sub, err := client.Subscribe(t.Context(), []wire.Start{pubsub.FromOldest("a")})
	require.NoError(t, err)
	defer sub.Close()
	item, err := sub.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, "1", string(item.Message.Data))

	s.fileSizeLimit(unix.RLIM_INFINITY)
	s.waitForMetric("pubsubd_store_faulty 0") // a probe succeeded
	s.post("/v1/topics/a/messages", "3")
	item, err = sub.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, "3", string(item.Message.Data), "what was refused is nowhere")
	s.signal(syscall.SIGTERM)
	s.wantEnd("the log on disk can be written again")
}
