package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsflate"
)

// The attacks of this file make a server work before it knows who asks for what. They come on
// connections that it serves in an event loop, together with those of others.

// pollsWith polls with tokens that the server refuses. The first poll of each batch has none, so
// the server takes the connection into its loop.
func pollsWith(token func() string) func(context.Context, *raid) error {
	const path = "/v1/poll?topic=abuse.quiet@oldest"
	return func(ctx context.Context, r *raid) error {
		r.request(ctx, func(int, int) []byte {
			polls := get(path)
			for range r.pipelined - 1 {
				polls = append(polls, "GET "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "+token()+"\r\n\r\n"...)
			}
			return polls
		})
		return nil
	}
}

// badlySigned makes tokens of which no two are equal. Members are added to their header.
func badlySigned(members string) func() string {
	const half = 66 // of a signature: a number of 521 bits
	text := base64.RawURLEncoding.EncodeToString
	return func() string {
		claims := fmt.Sprintf(`{"sub":"abuse","exp":%d}`, time.Now().Add(time.Hour).Unix())
		signature := make([]byte, 2*half)
		_, _ = rand.Read(signature)          // it does not fail
		signature[0], signature[half] = 0, 0 // else the numbers are too large, which is cheap to see
		return text([]byte(`{"alg":"ES512"`+members+`}`)) + "." + text([]byte(claims)) + "." + text(signature)
	}
}

// upgrade opens a WebSocket.
const upgrade = "GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
	"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"

// commands sends subscriptions over and over, without waiting for replies.
func commands(subscriptions int) func(context.Context, *raid) error {
	return func(ctx context.Context, r *raid) error {
		items := make([]string, subscriptions)
		for i := range items {
			items[i] = fmt.Sprintf(`{"topic":"abuse.%d@abcdefgh:%d","max_rate":"5/s"}`, i, i)
		}
		f, err := wsflate.CompressFrame(ws.NewTextFrame([]byte(`{"ref":1,"subscribe":[` + strings.Join(items, ",") + `]}`)))
		if err != nil {
			return err
		}
		message, err := ws.CompileFrame(ws.MaskFrameInPlace(f))
		if err != nil {
			return err
		}
		each(r.crowd, func(number int) {
			for r.paced.next(ctx) {
				r.command(ctx, number, message)
			}
		})
		return nil
	}
}

// command opens a WebSocket, and sends the message until the connection ends.
func (r *raid) command(ctx context.Context, number int, message []byte) {
	r.tally.operation()
	s := r.speaker(ctx, number)
	if s == nil {
		return
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer s.end()
	if !s.ask(ctx, []byte(upgrade)) {
		return
	}
	reading.Go(func() { _, _ = io.Copy(io.Discard, s.in) })
	for r.paced.next(ctx) {
		r.tally.operation()
		if s.say(message) != nil {
			r.cutOff(ctx)
			return
		}
	}
}
