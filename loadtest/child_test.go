package loadtest

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/child"
)

// childMain is a server process as the contract of package child wants it, or one
// that fails in the given way.
func childMain(role string) int {
	flags := flag.NewFlagSet("child", flag.ExitOnError)
	public := flags.String("listen-public", "", "")
	admin := flags.String("listen-admin", "", "")
	file := flags.String("addresses-file", "", "")
	_ = flags.Parse(os.Args[1:])
	if role == "dies" || *public != "127.0.0.1:0" || *admin != "127.0.0.1:0" {
		fmt.Fprintln(os.Stderr, "history: the file is in use")
		return 1
	}
	server := httptest.NewServer(newFake(faults{}))
	defer server.Close()
	address := server.Listener.Addr().String()
	line, _ := json.Marshal(child.Addresses{Public: address, Admin: address})
	if err := os.WriteFile(*file, append(line, '\n'), 0o600); err != nil {
		return 1
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	return 0
}

type notices struct{ texts []string }

func (n *notices) Notice(text string) { n.texts = append(n.texts, text) }
func (n *notices) Update(Status)      {}

func TestAServerIsStartedMeasuredAndStopped(t *testing.T) {
	t.Setenv("LOADTEST_CHILD", "serves")
	c := smallBroadcast(&fakeServer{http: &httptest.Server{}})
	c.ServerCommand = []string{os.Args[0]}
	n := &notices{}
	r, err := RunBroadcast(t.Context(), c, n)
	require.NoError(t, err)
	require.Empty(t, r.Errors)
	require.True(t, r.Parameters.StartedServer)
	require.Zero(t, r.Deliveries.Lost)
	require.NotNil(t, r.Server)
	require.Len(t, n.texts, 1)
	require.Contains(t, n.texts[0], "started a server as process")
}

func TestAServerThatDiesIsQuoted(t *testing.T) {
	t.Setenv("LOADTEST_CHILD", "dies")
	c := smallBroadcast(&fakeServer{http: &httptest.Server{}})
	c.ServerCommand = []string{os.Args[0]}
	_, err := RunBroadcast(t.Context(), c, nil)
	require.ErrorContains(t, err, "ended before it was ready: exit status 1; the end of its standard error:\n  history: the file is in use")
}
