package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// This program runs as four processes, so that nobody shares a scheduler, a garbage
// collector or a limit of open files: one that conducts, and one for each role.
// Roles take orders as lines of JSON on their standard input, answer each with a
// line on standard output, and end with their input.

// roleVariable names the role of a process in its environment.
const roleVariable = "PUBSUBD_ABUSE_ROLE"

// The roles.
const (
	theVictims   = "victims"
	theAttackers = "attackers"
	theSink      = "sink"
)

// An order is what a role is to do. Each has the members that it needs.
type order struct {
	Do     string        `json:"do"`
	Target string        `json:"target,omitempty"` // host:port
	Count  int           `json:"count,omitempty"`
	Attack string        `json:"attack,omitempty"`
	Small  bool          `json:"small,omitempty"`
	Lasts  time.Duration `json:"lasts,omitempty"`
}

// A reply answers an order.
type reply struct {
	Error string          `json:"error,omitempty"`
	Found json.RawMessage `json:"found,omitempty"`
}

// A role is another process of this program. Orders are given one at a time.
type role struct {
	name    string
	command *exec.Cmd
	in      io.WriteCloser
	orders  *json.Encoder
	replies *json.Decoder
}

// startRole starts a process, which ends with ctx at the latest. Whoever starts one
// must stop it.
func startRole(ctx context.Context, name string) (*role, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	r := &role{name: name, command: exec.CommandContext(ctx, self)}
	r.command.Env = append(os.Environ(), roleVariable+"="+name)
	r.command.Stderr = os.Stderr
	in, err := r.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	out, err := r.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := r.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	r.in, r.orders, r.replies = in, json.NewEncoder(in), json.NewDecoder(out)
	return r, nil
}

// do gives an order, and waits until it is carried out.
func (r *role) do(o order, found any) error {
	var answer reply
	err := r.orders.Encode(o)
	if err == nil {
		err = r.replies.Decode(&answer)
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err == nil && found != nil {
		err = json.Unmarshal(answer.Found, found)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.name, o.Do, err)
	}
	return nil
}

// stop ends the process, which may be called of one that has ended.
func (r *role) stop() {
	_ = r.in.Close()
	_ = r.command.Wait() // how it ended was told by what it was asked last
}

// obey carries out orders from in, one after the other, until there are no more.
func obey(in io.Reader, out io.Writer, carryOut func(o order) (any, error)) error {
	orders, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an order: %w", err)
		}
		found, err := carryOut(o)
		var answer reply
		if err == nil {
			answer.Found, err = json.Marshal(found)
		}
		if err != nil {
			answer.Error = err.Error()
		}
		if err := replies.Encode(answer); err != nil {
			return fmt.Errorf("reply: %w", err)
		}
	}
}

// play is the whole of a process that has a role.
func play(ctx context.Context, name string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	switch name {
	case theSink:
		return playSink(ctx, in, out)
	case theAttackers:
		return obey(in, out, func(o order) (any, error) { return raidOn(ctx, o) })
	case theVictims:
		return playVictims(ctx, in, out)
	}
	return fmt.Errorf("role %q is not known", name)
}

func raidOn(ctx context.Context, o order) (any, error) {
	a, ok := attackNamed(o.Attack, o.Small)
	if !ok {
		return nil, unknownAttack(o.Attack)
	}
	return carryOut(ctx, a, o.Target, o.Lasts), nil
}

// playSink serves, and tells whoever asks where.
func playSink(ctx context.Context, in io.Reader, out io.Writer) error {
	s, err := newSink(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.serve(ctx) }()
	err = obey(in, out, func(order) (any, error) { return s.address(), nil })
	cancel()
	return errors.Join(err, <-served)
}
