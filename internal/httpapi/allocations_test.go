//go:build !race && linux

package httpapi

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A hundred subscribers poll on the lane. What a burst allocates is the message's,
// a few dozen times in all, and nobody's delivery. (The race detector makes pools
// forget, so make check runs this without it.)
func TestADeliveryOnTheLaneAllocatesNothing(t *testing.T) {
	wantNoAllocationsByDelivery(t, "")
}

// Nor where they are pages of two origins in turn, whose answers differ by their
// heads: the message is copied once for each.
func TestADeliveryToPagesOfTwoOriginsAllocatesNothing(t *testing.T) {
	wantNoAllocationsByDelivery(t, "https://app.example", "http://localhost:3000")
}

// Nor where what is delivered is compressed, to some of them: that is once, too.
func TestACompressedDeliveryAllocatesNothing(t *testing.T) {
	wantNoAllocationsByDeliveryOf(t, []byte(strconv.Quote(long(2000))), func(i int) string {
		return []string{"", takesGzip}[i%2]
	})
}

// wantNoAllocationsByDelivery has pollers of these origins in turn.
func wantNoAllocationsByDelivery(t *testing.T, origins ...string) {
	t.Helper()
	wantNoAllocationsByDeliveryOf(t, []byte("1"), func(i int) string {
		if origin := origins[i%len(origins)]; origin != "" {
			return "Origin: " + origin + "\r\n"
		}
		return ""
	}, origins...)
}

// wantNoAllocationsByDeliveryOf has pollers who send the i-th headers.
func wantNoAllocationsByDeliveryOf(t *testing.T, payload []byte, headers func(i int) string, origins ...string) {
	t.Helper()
	const subscribers, ofAMessage = 100, 40
	for _, way := range []LaneWay{LaneHandOff, LaneChannel} {
		t.Run(string(way), func(t *testing.T) {
			k := newLaneKit(t, way, slices.DeleteFunc(slices.Clone(origins), func(o string) bool { return o == "" })...)
			pollers := make([]*poller, subscribers)
			for i := range pollers {
				pollers[i] = k.newPoller(headers(i))
			}
			burst := func() {
				_, err := k.cfg.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: payload}, 0, time.Now())
				require.NoError(t, err)
				for _, p := range pollers {
					p.answer()
					p.poll()
				}
			}
			for range 50 {
				burst()
			}
			require.Less(t, testing.AllocsPerRun(100, burst), float64(ofAMessage))
			require.Equal(t, strings.Contains(headers(1), "gzip"), k.compressed()[0] != "0")
		})
	}
}

// A poller is a subscriber of topic a on its own connection that allocates nothing
// itself.
type poller struct {
	*kit
	conn    net.Conn
	headers string // that it sends beside Host
	begin   []byte // of its request, up to the count
	request []byte
	buf     [4096]byte
	had     int64
}

func (k *kit) newPoller(headers string) *poller {
	k.Helper()
	p := &poller{kit: k, headers: headers, begin: []byte(fmt.Sprintf("GET /v1/sessions/%s/poll?ack=", k.open(`{"topics":["a"]}`).Session))}
	var err error
	p.conn, err = k.dial()
	require.NoError(k, err)
	k.Cleanup(func() { p.conn.Close() })
	p.poll()
	return p
}

func (p *poller) poll() {
	p.request = append(p.request[:0], p.begin...)
	p.request = strconv.AppendInt(p.request, p.had, 10)
	p.request = append(p.request, " HTTP/1.1\r\nHost: h\r\n"...)
	p.request = append(append(p.request, p.headers...), "\r\n"...)
	if _, err := p.conn.Write(p.request); err != nil {
		p.Fatal(err)
	}
}

var (
	lengthField = []byte("Content-Length: ")
	emptyLine   = []byte("\r\n\r\n")
)

// answer reads one answer and counts its one frame.
func (p *poller) answer() {
	n := 0
	for {
		m, err := p.conn.Read(p.buf[n:])
		if err != nil {
			p.Fatal(err)
		}
		n += m
		if end := bytes.Index(p.buf[:n], emptyLine); end >= 0 && n >= end+len(emptyLine)+p.length() {
			p.had++
			return
		}
	}
}

func (p *poller) length() int {
	length := 0
	for _, c := range p.buf[bytes.Index(p.buf[:], lengthField)+len(lengthField):] {
		if c < '0' || c > '9' {
			break
		}
		length = length*10 + int(c-'0')
	}
	return length
}
