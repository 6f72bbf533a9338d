//go:build !race && linux

package lane_test

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

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A hundred subscribers poll on the lane. Publishing a message allocates a few dozen
// times in all; delivering it to a subscriber allocates nothing. The race detector drops
// pooled objects, so make check runs this test without it.
func TestADeliveryOnTheLaneAllocatesNothing(t *testing.T) {
	wantNoAllocationsByDelivery(t, "")
}

// As above, with subscribers of two origins. Their answers have different headers, so the
// message is copied once per origin.
func TestADeliveryToPagesOfTwoOriginsAllocatesNothing(t *testing.T) {
	wantNoAllocationsByDelivery(t, "https://app.example", "http://localhost:3000")
}

// As above, with every second subscriber accepting gzip. The message is compressed once.
func TestACompressedDeliveryAllocatesNothing(t *testing.T) {
	wantNoAllocationsByDeliveryOf(t, []byte(strconv.Quote(lanetest.Long(2000))), func(i int) string {
		return []string{"", lanetest.TakesGzip}[i%2]
	})
}

// wantNoAllocationsByDelivery delivers a small message to pollers that use these origins
// in turn.
func wantNoAllocationsByDelivery(t *testing.T, origins ...string) {
	t.Helper()
	wantNoAllocationsByDeliveryOf(t, []byte("1"), func(i int) string {
		if origin := origins[i%len(origins)]; origin != "" {
			return "Origin: " + origin + "\r\n"
		}
		return ""
	}, origins...)
}

// wantNoAllocationsByDeliveryOf delivers payload to pollers and bounds the allocations.
// Poller i sends headers(i).
func wantNoAllocationsByDeliveryOf(t *testing.T, payload []byte, headers func(i int) string, origins ...string) {
	t.Helper()
	const subscribers, ofAMessage = 100, 40
	for _, way := range []lane.Way{lane.HandOff, lane.Channel} {
		t.Run(string(way), func(t *testing.T) {
			k := newLane(t, way, slices.DeleteFunc(slices.Clone(origins), func(o string) bool { return o == "" })...)
			pollers := make([]*poller, subscribers)
			for i := range pollers {
				pollers[i] = k.newPoller(headers(i))
			}
			burst := func() {
				_, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: payload}, 0, time.Now())
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
			require.Equal(t, strings.Contains(headers(1), "gzip"), k.Compressed()[0] != "0")
		})
	}
}

// A poller subscribes to topic a on its own connection. It allocates nothing itself.
type poller struct {
	*kit
	conn    net.Conn
	headers string // sent in addition to Host
	begin   []byte // start of each request, up to the value of ack
	request []byte
	buf     [4096]byte
	had     int64
}

func (k *kit) newPoller(headers string) *poller {
	k.Helper()
	p := &poller{kit: k, headers: headers, begin: []byte(fmt.Sprintf("GET /v1/sessions/%s/poll?ack=", k.OpenA()))}
	var err error
	p.conn, err = k.Dial()
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
