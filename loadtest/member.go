package loadtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/child"
)

// A member is one agent.
type member struct {
	address string
	token   string
	child   *child.Child // nil: it ran before
	http    *http.Client

	// Set once, before the loop runs, or by tune.
	hello    agentHello
	perTopic int
	clients  int
	clock    clock

	status atomic.Pointer[portionStatus]
}

func newMember(address, token string) *member {
	m := &member{address: address, token: token}
	m.http = &http.Client{Timeout: sampleTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 4}} // no proxy
	m.status.Store(&portionStatus{})
	return m
}

// greet makes sure that the agent is one that can be worked with.
func (m *member) greet(ctx context.Context, version string) error {
	if _, _, err := net.SplitHostPort(m.address); err != nil {
		return fmt.Errorf("--agents: %q: write host:port: %w", m.address, err)
	}
	if err := m.call(ctx, http.MethodGet, "/v1/agent", nil, &m.hello); err != nil {
		return err
	}
	switch h := &m.hello; {
	case h.Control != controlVersion:
		return fmt.Errorf("agent %s has version %d of the control protocol; this process has version %d: use one build for both", m.address, h.Control, controlVersion)
	case h.Version != version:
		return fmt.Errorf("agent %s is build %q; this process is build %q: use one build for both", m.address, h.Version, version)
	case h.Busy:
		return fmt.Errorf("agent %s has another run: wait for its end, or start another agent", m.address)
	}
	return nil
}

// gone adds to an error how the agent's process ended, if it was started here.
func (m *member) gone(err error) error {
	if m.child == nil {
		return err
	}
	select {
	case <-m.child.Gone():
	case <-time.After(time.Second): // a connection breaks before its process has ended
	}
	return errors.Join(err, m.child.Ended())
}

func (m *member) compare(c *crew) (clock, error) {
	return compareClocks(c.now, func() (reading clockReading, err error) {
		err = m.call(c.ctx, http.MethodPost, c.path("/clock"), nil, &reading)
		return reading, err
	})
}

// call asks the agent.
func (m *member) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("agent %s: %w", m.address, err)
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+m.address+path, body)
	if err != nil {
		return fmt.Errorf("agent %s: %w", m.address, err)
	}
	request.Header.Set("Content-Type", "application/json")
	if m.token != "" {
		request.Header.Set("Authorization", "Bearer "+m.token)
	}
	answered, err := m.http.Do(request)
	if err != nil {
		if fault, ok := errors.AsType[*url.Error](err); ok {
			err = fault.Err // its URL names the run, which is nobody's business
		}
		return fmt.Errorf("agent %s cannot be reached: %w", m.address, err)
	}
	defer answered.Body.Close()
	if err := readControl(answered, out); err != nil {
		return fmt.Errorf("agent %s: %w", m.address, err)
	}
	return nil
}

func readControl(answered *http.Response, out any) error {
	text, err := io.ReadAll(io.LimitReader(answered.Body, maxControl))
	if err != nil {
		return err
	}
	if answered.StatusCode >= http.StatusMultipleChoices {
		var e controlError
		if json.Unmarshal(text, &e) != nil || e.Error == "" {
			return fmt.Errorf("this is no agent of a load test: it answered %s %.80q", answered.Status, text)
		}
		return errors.New(e.Error)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}
