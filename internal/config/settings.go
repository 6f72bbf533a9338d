package config

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// maxMessageBytes is what message.bytes may be raised to: a history or an answer
// of larger messages holds too few of them to be worth its name.
const maxMessageBytes = 8 << 20

// leastCompressed is what compression.min_bytes may be lowered to: of less a tenth,
// which has to be saved, is less than what gzip puts around it.
const leastCompressed = 256

// settings returns the table of all settings, bound to the fields of c: the key
// in the file, the field with its default and bounds, marked live if a reload
// reaches it, and a line for --help. With what it joins and rules.go it is the only place where a
// setting is named.
func settings(c *Config) []setting {
	const ms = time.Millisecond // protocol limits are told in whole milliseconds
	b, s, t, l := &c.Broker, &c.Session, &c.Transport, &c.Limit
	rows := []setting{
		{"listen.public", address(&c.Listen.Public, "127.0.0.1:8080"), "where clients connect"},
		{"listen.admin", address(&c.Listen.Admin, "127.0.0.1:8081"), "where operators find metrics, health and profiles"},
		{"listen.tcp", maybeAddress(&c.Listen.TCP), "where clients connect without HTTP, speaking CBOR sequences; 127.0.0.1:8082 is usual"},
		{"tls.cert", path(&c.TLS.Cert), "serve clients over TLS, HTTP/2 if they like, with the certificate in this file, in PEM, and then those between it and its authority; a reload reads the file again"},
		{"tls.key", path(&c.TLS.Key), "the private key of tls.cert, in PEM; a reload reads the file again"},
		{"http2.cleartext", truth(&c.HTTP2.Cleartext, false), "without tls.cert, take HTTP/2, too, from proxies that are told to speak it (h2c with prior knowledge)"},
		{"insecure", truth(&c.Insecure, false), "serve everyone who can connect, also from other machines, without authorisation"},
		{"cors.origins", origins(&c.Origins), "pages of other origins that may use the daemon; in the file, * needs quotes"},
		{"log.level", live(choice(&c.Log.Level, "info", "debug", "warn", "error")), "the least severe entries that are logged: debug, info, warn or error"},
		{"log.format", choice(&c.Log.Format, "json", "console"), "how log entries are written: json or console"},

		{"history.messages", live(count(&b.HistoryMessages, broker.DefaultHistoryMessages, math.MaxInt)), "messages that each topic retains"},
		{"history.bytes", live(size(&b.HistoryBytes, broker.DefaultHistoryBytes, math.MaxInt)), "bytes that each topic retains; at least message.bytes"},
		{"history.age", live(duration(&b.HistoryAge, broker.DefaultHistoryAge, ms)), "how long each topic retains a message"},
		{"memory.budget", live(sizeOrAuto(&b.MemoryBudget)), "bytes that all histories, queues and cached frames may take; at least history.bytes; auto is 512MiB, or half of GOMEMLIMIT if that is less; the process takes up to about twice that, unless GOMEMLIMIT says less"},
		{"limits.topics", live(count(&b.MaxTopics, broker.DefaultMaxTopics, math.MaxInt)), "topics held at one time"},
		{"limits.sessions", live(count(&s.MaxSessions, session.DefaultMaxSessions, math.MaxInt)), "sessions open at one time"},
		{"limits.pending_sessions", live(count(&l.PendingSessions, limit.DefaultPendingSessions, math.MaxInt)), "requests for a session that wait, in order, when limits.sessions are open"},
		{"limits.calls", live(count(&l.Calls, limit.DefaultCalls, math.MaxInt)), "publishes and other requests, but for polls, in flight at one time"},
		{"limits.waiting_calls", live(count(&l.WaitingCalls, limit.DefaultWaitingCalls, math.MaxInt)), "requests that wait, in order, when limits.calls are in flight"},
		{"limits.wait", live(duration(&l.Wait, limit.DefaultWait, ms)), "how long a request waits for a place, of a call or a session, until it is refused"},
		{"limits.pending_messages_per_session", live(count(&l.PendingMessages, limit.DefaultPendingMessages, math.MaxInt)), "publishes that name one session (session=) and are in flight or wait"},
		{"limits.connections", live(countOr("auto", &l.Connections)), "connections of clients at one time; auto is as many as the process may open files, less a reserve"},
		{"limits.address_connections", live(countOr("off", &l.AddressConnections)), "connections at one time from each address, but for trusted_proxies; an IPv6 network of 64 bits is one"},
		{"limits.address_calls", live(countOr("off", &l.AddressCalls)), "requests, but for polls, in flight or waiting from each address; an IPv6 network of 64 bits is one"},
		{"limits.subscriptions", live(count(&s.Subscriptions, session.DefaultSubscriptions, math.MaxInt)), "topics that one session may hold"},
		{"limits.all_subscriptions", live(count(&b.MaxSubscriptions, broker.DefaultMaxSubscriptions, math.MaxInt)), "topics that all sessions together may hold"},
		{"trusted_proxies", live(proxies(&l.TrustedProxies)), "proxies whose X-Forwarded-For is believed; limits by address are those of the last address in it that is not theirs; a reload is for connections from then on"},
		{"message.bytes", live(size(&c.MessageBytes, 64<<10, maxMessageBytes)), "the largest payload that may be published"},
		{"idempotency.window", live(duration(&b.IdempotencyWindow, broker.DefaultIdempotencyWindow, ms)), "how long the result of a publish with an idempotency key is repeated"},
		{"idempotency.keys", live(count(&b.IdempotencyKeys, broker.DefaultIdempotencyKeys, math.MaxInt)), "idempotency keys whose results are remembered; the oldest go first"},

		{"session.queue", live(count(&s.Queue, session.DefaultQueue, 1024)), "frames a session buffers before a topic falls behind; idle sessions pay for all of them; a session that has buffered something keeps its own"},
		{"session.unacked", live(count(&s.Unacked, session.DefaultUnacked, math.MaxInt)), "frames kept that were sent and not yet acked"},
		{"session.inactivity_timeout", live(duration(&s.InactivityTimeout, session.DefaultInactivityTimeout, ms)), "a session without a poll ends after this"},
		{"session.ended_remembered", count(&s.EndedRemembered, session.DefaultEndedRemembered, math.MaxInt), "ended sessions whose reason is remembered"},

		{"poll.timeout", live(duration(&t.PollTimeout, transport.DefaultPollTimeout, ms)), "how long a poll is held before it is answered empty"},
		{"poll.heartbeat", live(duration(&t.Heartbeat, transport.DefaultHeartbeat, ms)), "how often a quiet stream sends an empty line"},
		{"poll.max_output_delay", live(duration(&t.MaxOutputDelay, transport.DefaultMaxOutputDelay, ms)), "how long a quiet \"multiple\" answer stays open"},
		{"poll.multiple_time", live(duration(&t.MultipleTime, transport.DefaultMultipleTime, ms)), "how long a \"multiple\" answer may last"},
		{"poll.answer_frames", live(count(&t.AnswerFrames, transport.DefaultAnswerFrames, math.MaxInt)), "frames in an answer that ends"},
		{"poll.answer_bytes", live(size(&t.AnswerBytes, transport.DefaultAnswerBytes, math.MaxInt)), "bytes in an answer that ends, about; one frame always goes"},
		{"poll.write_timeout", live(duration(&t.WriteTimeout, transport.DefaultWriteTimeout, ms)), "how long one write to a client may take"},

		{"compression.min_bytes", live(sizeOrOff(&t.CompressionMinBytes, transport.DefaultCompressionMinBytes, leastCompressed)), "messages that take at least so much are compressed, once for all whose clients accept it; off compresses nothing"},

		{"lane", choice(&c.Lane, "handoff", "channel", "off"), "the short way for polls and small publishes: handoff, channel (each poll has a goroutine, which a frame wakes) or off (net/http serves everything)"},
		{"drain.window", live(duration(&c.DrainWindow, 10*time.Second, 0)), "how long clients may take to leave when the daemon is told to stop; sessions are ended within three quarters of it"},
		{"state", path(&c.StateFile), "keep topics over a planned restart in this file: written when the daemon has drained, loaded and removed when it starts"},
		{"addresses_file", path(&c.AddressesFile), "write the addresses listened on to this file once ready, as JSON"},
	}
	return slices.Concat(rows, hookSettings(&c.PublishHook), rateSettings(&l.Rates))
}

// A setting is one row of the table.
type setting struct {
	key   string // in the file; dots are levels
	field field
	doc   string // one line
}

// envPrefix begins the names of our environment variables.
const envPrefix = "PUBSUBD_"

var (
	flagNames = strings.NewReplacer(".", "-", "_", "-")
	envNames  = strings.NewReplacer(".", "_", "-", "_")
)

// flag returns the flag's name: history-age for history.age.
func (s setting) flag() string { return flagNames.Replace(s.key) }

// env returns the environment variable: PUBSUBD_HISTORY_AGE for history.age.
func (s setting) env() string { return envPrefix + strings.ToUpper(envNames.Replace(s.key)) }
