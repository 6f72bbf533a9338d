package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/store"
)

// maxMessageBytes is the most that message.bytes may be: a history or an answer
// would hold too few larger messages.
const maxMessageBytes = 8 << 20

// minCompressed is the least that compression.min_bytes may be. A compressed message
// must save a tenth, which below this size is less than what gzip adds.
const minCompressed = 256

// minStoreBytes is the least that store.bytes may be: smaller files hold too few messages.
const minStoreBytes = 64 << 20

// storeDir is the setting that turns the write-ahead log on. Its flag is --store.
const storeDir = "store.dir"

// The most that hooks.events.batch and hooks.events.queue may be, which take about 100 bytes
// an event.
const (
	maxBatch  = 10_000
	maxEvents = 1_000_000
)

// A setting is one row of the table.
type setting struct {
	key string // in the file; dots are levels
	*field
	doc string // one line
}

// settings returns the table of all settings outside rules, bound to the fields of c: the
// key in the file, the field with its bounds, and a line for --help. Flags,
// variables, the document and the checks follow from it.
func settings(c *Config) []setting {
	const ms = time.Millisecond // the protocol states its limits in whole milliseconds
	a, b, s, t, l, h, z, e := &c.Auth, &c.Broker, &c.Session, &c.Transport, &c.Limit, &c.PublishHook, &c.AuthorizeHook, &c.EventsHook
	return slices.Concat([]setting{
		{"listen.public", restart(address(&c.Listen.Public, false, "127.0.0.1:8080, [::1]:8080 or :0")), "address for clients"},
		{"listen.admin", restart(localAddress(&c.Listen.Admin, "127.0.0.1:8081, [::1]:8080 or :0")), "address for operators: metrics, health, profiles and revocations; host:port, or a Unix socket that only the daemon's user can connect to: unix:/run/pubsubd/admin.sock"},
		{"listen.tcp", restart(address(&c.Listen.TCP, true, "127.0.0.1:8082, or nothing")), "address for clients without HTTP, which speak CBOR sequences over TCP; usually 127.0.0.1:8082"},
		{"listen.acme", restart(address(&c.Listen.ACME, true, ":80, or nothing")), "address for challenges of ACME over HTTP (HTTP-01), which the authority reaches on port 80; without it, only challenges over TLS on listen.public (TLS-ALPN-01) are answered"},
		{"admin.key_file", path(&c.Admin.KeyFile), "file with the key of operators, at least 24 bytes of text, as openssl rand -base64 32 makes it; over host:port, requests that change something need it (Authorization: Bearer); over a Unix socket they do not; the daemon reads the file for each request"},
		{"tls.cert", restart(path(&c.TLS.Cert)), "file with the certificate in PEM, followed by the intermediate certificates; clients then connect over TLS and may use HTTP/2; a reload reads the file again"},
		{"tls.key", restart(path(&c.TLS.Key)), "file with the private key of tls.cert, in PEM; a reload reads the file again"},
		{"tls.client_ca", restart(path(&c.TLS.ClientCA)), "file with the authorities, in PEM, whose certificates clients may show; the common name is the principal, whose rights auth.certificates has; a reload reads the file again"},
		{"tls.acme.domains", restart(domains(&c.ACME.Domains)), "names for which the daemon gets certificates and renews them (ACME), instead of tls.cert; the authority must reach listen.public on port 443, or listen.acme on port 80"},
		{"tls.acme.email", restart(email(&c.ACME.Email)), "where the authority warns you about certificates"},
		{"tls.acme.directory", restart(directory(&c.ACME.Directory)), "URL of the authority's directory"},
		{"tls.acme.storage", restart(path(&c.ACME.Storage)), "folder of mode 0700 for the private keys, the certificates and the account; required with tls.acme.domains; keep it over restarts"},
		{"tls.acme.agree", restart(truth(&c.ACME.Agree)), "you agree to the authority's terms of service; required with tls.acme.domains"},
		{"http2.cleartext", restart(truth(&c.HTTP2.Cleartext)), "without tls.cert, also accept HTTP/2 with prior knowledge (h2c), for proxies that are configured to speak it"},
		{"insecure", restart(truth(&c.Insecure)), "serve everyone who can connect, also from other machines, without authorisation and without TLS"},
		{"plaintext", restart(truth(&c.Plaintext)), "serve other machines without TLS, because TLS ends at a proxy before the daemon; authorisation is still required; the admin listener, which has no TLS, then may listen beyond loopback, too"},
		{"hosts", hosts(&c.Hosts), "names under which clients and operators may address the daemon, besides IP addresses and localhost; with an empty list, loopback listeners without TLS accept no other name (unless cors.origins is *), and other listeners accept every name; in the file, put * in quotes"},
		{"cors.origins", restart(origins(&c.Origins)), "other origins whose pages may use the daemon; in the file, put * in quotes"},
		{"log.level", word(&c.Log.Level, "info", "debug", "warn", "error"), "lowest level of log entries: debug, info, warn or error"},
		{"log.format", restart(word(&c.Log.Format, "json", "console")), "format of log entries: json or console"},

		{"history.messages", count(&b.HistoryMessages), "messages that each topic retains"},
		{"history.bytes", size(&b.HistoryBytes), "bytes that each topic retains; at least message.bytes"},
		{"history.age", duration(&b.HistoryAge, ms), "how long each topic retains a message"},
		{"memory.budget", number{least: 1, bytes: true, word: "auto"}.field(&b.MemoryBudget), "bytes that all histories, queues and cached frames may take together; at least history.bytes; auto is 512MiB, or half of GOMEMLIMIT if that is less; the process takes up to about twice as much, unless GOMEMLIMIT is lower"},
		{"limits.topics", count(&b.MaxTopics), "topics at one time"},
		{"limits.sessions", count(&s.MaxSessions), "sessions open at one time"},
		{"limits.pending_sessions", count(&l.PendingSessions), "requests for a session that may wait, in order, when limits.sessions are open"},
		{"limits.calls", count(&l.Calls), "publishes and other requests, except polls, in flight at one time"},
		{"limits.waiting_calls", count(&l.WaitingCalls), "requests that may wait, in order, when limits.calls are in flight"},
		{"limits.wait", duration(&l.Wait, ms), "how long a request may wait for one of limits.calls or limits.sessions before it is refused"},
		{"limits.pending_messages_per_session", count(&l.PendingMessages), "publishes that name the same session (session=) and are in flight or wait"},
		{"limits.connections", number{least: 1, word: "auto"}.field(&l.Connections), "connections of clients at one time; auto is the number of files that the process may open, less a reserve"},
		{"limits.address_connections", number{least: 1, word: "off"}.field(&l.AddressConnections), "connections at one time from each address, except trusted_proxies; an IPv6 network of 64 bits counts as one address"},
		{"limits.address_calls", number{least: 1, word: "off"}.field(&l.AddressCalls), "requests, except polls, in flight or waiting from each address; an IPv6 network of 64 bits counts as one address"},
		{"limits.subscriptions", count(&s.Subscriptions), "topics that one session may be subscribed to"},
		{"limits.all_subscriptions", count(&b.MaxSubscriptions), "subscriptions of all sessions together"},
		{"trusted_proxies", proxies(&l.TrustedProxies), "proxies whose X-Forwarded-For is trusted; limits by address then count the last address in it that is not one of these; a reload applies to new connections"},
		{"message.bytes", number{least: 1, most: maxMessageBytes, bytes: true}.field(&c.MessageBytes), "largest payload of a message"},
		{"idempotency.window", duration(&b.IdempotencyWindow, ms), "how long the result of a publish with an idempotency key is remembered"},
		{"idempotency.keys", count(&b.IdempotencyKeys), "idempotency keys whose results are remembered; the oldest are dropped first"},

		{"session.queue", number{least: 1, most: 1024}.field(&s.Queue), "frames that a session buffers before a topic falls behind; an idle session takes memory for all of them; a session that has buffered a frame keeps its size"},
		{"session.unacked", count(&s.Unacked), "sent frames that a session keeps until the client acknowledges them"},
		{"session.inactivity_timeout", duration(&s.InactivityTimeout, ms), "a session ends after this long without a poll"},
		{"session.ended_remembered", restart(count(&s.EndedRemembered)), "ended sessions whose reason is remembered"},

		{"poll.timeout", duration(&t.PollTimeout, ms), "how long a poll waits for a frame before its answer is empty"},
		{"poll.heartbeat", duration(&t.Heartbeat, ms), "how often an idle stream sends an empty line"},
		{"poll.max_output_delay", duration(&t.MaxOutputDelay, ms), "how long an idle \"multiple\" answer stays open"},
		{"poll.multiple_time", duration(&t.MultipleTime, ms), "how long a \"multiple\" answer may last"},
		{"poll.answer_frames", count(&t.AnswerFrames), "most frames in an answer that is not a stream"},
		{"poll.answer_bytes", size(&t.AnswerBytes), "most bytes, about, in an answer that is not a stream; one frame is always allowed"},
		{"poll.write_timeout", duration(&t.WriteTimeout, ms), "how long one write to a client may take"},

		{"compression.min_bytes", number{least: minCompressed, bytes: true, word: "off", means: -1}.field(&t.CompressionMinBytes), "messages of at least this size are compressed, once for all clients that accept it; off disables compression"},

		{"lane", restart(word(&c.Lane, "handoff", "channel", "off")), "fast path for polls and small publishes: handoff, channel (one goroutine per poll, which a frame wakes) or off (net/http serves everything)"},
		{"drain.window", duration(&c.DrainWindow, 0), "how long clients may take to leave when the daemon stops; it ends their sessions within three quarters of this"},
		{"state", restart(path(&c.StateFile)), "file that keeps topics over a planned restart: the daemon writes it after a drain, and loads and removes it at start; with store.dir, only the first start reads the file, and no daemon writes it"},
		{storeDir, restart(path(&c.Store.Dir)), "folder of the log that keeps topics over restarts and crashes; the daemon creates it with mode 0700; the first start takes over the file of state"},
		{"store.sync", restart(word(&c.Store.Sync, store.SyncEverySecond, store.SyncAlways, store.SyncNever)), "when the daemon syncs messages to disk (fsync): always (before subscribers get them), 1s (once a second) or never (the operating system decides); a power loss may lose messages that are not synced, a crash of the daemon loses none"},
		{"store.bytes", restart(number{least: minStoreBytes, bytes: true, word: "off"}.field(&c.Store.Bytes)), "bytes that all files of the log may take; at the limit, publishes are refused; histories may take a quarter of it: above that, the largest topics lose their oldest messages"},
		{"addresses_file", restart(path(&c.AddressesFile)), "file to which the daemon writes its addresses, as JSON, once it is ready"},

		{"auth.keys", restart(keyFiles(&a.Keys)), "files with the keys that verify tokens: public keys in PEM, JWKs or JWK sets; a secret for HMAC is a JWK of type oct; the daemon reads a file again when it changes"},
		{"auth.jwks", restart(jwksURL(&a.JWKS)), "URL of a JWK set with the public keys that verify tokens; the daemon fetches it every 5 minutes, and at once for an unknown key id, and refuses its keys an hour after the last successful fetch"},
		{"auth.issuer", restart(claim(&a.Issuer)), "iss that tokens must have; without it any"},
		{"auth.audience", restart(claim(&a.Audience)), "audience that aud of tokens must include; without it, tokens with aud are refused"},
		{"auth.type", restart(claim(&a.Type)), "typ that the header of tokens must have, such as at+jwt; without it any"},
		{"auth.api_keys", restart(path(&a.APIKeys)), "file of API keys of back ends, as pubsubd key new makes it; the daemon reads it again when it changes"},
		{"auth.revocations", restart(path(&a.Revocations)), "file of revoked tokens, which the daemon makes and keeps for itself; without it, pubsubd revoke only ends sessions"},
		{"auth.token_max_age", restart(duration(&a.TokenMaxAge, time.Second)), "how long a token may be valid, from iat to exp; it bounds the list of revocations"},
		{"auth.public_claims", restart(claims(&a.PublicClaims)), "claims of a token that other clients may see, such as name; together at most 256 bytes of JSON"},
		{"auth.anonymous", restart(rights(&a.Anonymous)), "rights of clients without credentials, in the form of a token's claim pubsub; without it they have none, if any other auth setting is set"},
		{"auth.certificates", restart(rights(&a.Certificates)), "rights of clients with a certificate, in the same form; $sub stands for the certificate's common name; certificates of trusted_proxies give no rights"},

		{"hooks.publish.url", hookURL(&h.URL), "the application that is asked about each message before it is published (internal/hook/HOOKS.md)"},
		{"hooks.publish.secret", hookSecret(&h.Secret), "key that signs the requests to the application; required with hooks.publish.url"},
		{"hooks.publish.timeout", duration(&h.Timeout, ms), "how long the application may take to answer"},
		{"hooks.publish.calls", count(&h.Calls), "messages that the application is asked about at one time; these count among limits.calls, so fewer leave some for other requests; more messages wait, in order, up to half of limits.calls, for limits.wait"},
		{"hooks.publish.topics", patterns(&b.HookTopics), "topics that the application is asked about; in the file, put > and * in quotes"},
		{"hooks.authorize.url", hookURL(&z.URL), "the application that is asked about each request to subscribe, also of polls and streams (internal/hook/HOOKS.md)"},
		{"hooks.authorize.secret", hookSecret(&z.Secret), "key that signs the requests to the application; required with hooks.authorize.url"},
		{"hooks.authorize.timeout", duration(&z.Timeout, ms), "how long the application may take to answer"},
		{"hooks.authorize.calls", count(&z.Calls), "requests to subscribe that the application is asked about at one time; these count among limits.calls, so fewer leave some for other requests; more requests wait, in order, up to a quarter of limits.calls, for limits.wait"},
		{"hooks.authorize.topics", patterns(&z.Topics), "topics that the application is asked about, also if a client subscribes to a pattern that matches any of them; > does not match topics that begin with _; in the file, put > and * in quotes"},
		{"hooks.authorize.cache", duration(&z.Cache, 0), "how long the daemon does not repeat a question to which the application agreed; 0 asks each time"},
		{"hooks.events.url", hookURL(&e.URL), "the application that hears of sessions that open and end, and of topics that get their first subscriber or lose the last one (internal/hook/HOOKS.md)"},
		{"hooks.events.secret", hookSecret(&e.Secret), "key that signs the requests to the application; required with hooks.events.url"},
		{"hooks.events.timeout", duration(&e.Timeout, ms), "how long the application may take to answer"},
		{"hooks.events.topics", patterns(&e.Topics), "topics that the application hears of; > does not match topics that begin with _; in the file, put > and * in quotes"},
		{"hooks.events.batch", number{least: 1, most: maxBatch}.field(&e.Batch), "events that one request has at most"},
		{"hooks.events.delay", duration(&e.Delay, ms), "how long an event waits for others of the same request"},
		{"hooks.events.grace", duration(&e.Grace, ms), "how long a topic must have no subscriber before the application hears of it, so that reconnects are silent"},
		{"hooks.events.queue", number{least: 1, most: maxEvents}.field(&e.Queue), "events that may wait for the application; later ones are dropped and counted"},
		{"hooks.events.attempts", count(&e.Attempts), "how often a request is sent before its events are dropped and counted; the time between two attempts grows from 1 second to 1 minute"},
	}, rateSettings(&l.Rates))
}

// ratesKey is the section of the rate limits: rates.polls.address.
const ratesKey = "rates"

func rateKey(kind limit.Kind, scope limit.Scope) string {
	return ratesKey + "." + kind.String() + "." + scope.String()
}

// ratedKinds and ratedScopes say in words what a rate limits, and for whom.
var (
	ratedKinds = map[limit.Kind]string{
		limit.Publishes:   "published messages",
		limit.Sessions:    "opened sessions",
		limit.Polls:       "polls and streams, with acks and pings on WebSocket and TCP connections",
		limit.Requests:    "other requests, with changes of subscriptions on WebSocket and TCP connections",
		limit.Topics:      "topics that a publish or a subscription creates",
		limit.Connections: "new connections",
		limit.Misses:      "requests that name an unknown session",
	}
	ratedScopes = map[limit.Scope]string{
		limit.All:       ", for all clients together",
		limit.Address:   ", for each address; an IPv6 network of 64 bits counts as one address",
		limit.Principal: ", for each principal",
	}
)

// rateSettings returns the table of the rates of every kind and scope.
func rateSettings(r *limit.Rates) []setting {
	var rows []setting
	for _, kind := range limit.Kinds() {
		for _, scope := range kind.Scopes() {
			rows = append(rows, setting{rateKey(kind, scope), rate(&r[kind][scope]), "rate of " + ratedKinds[kind] + ratedScopes[scope]})
		}
	}
	return rows
}

// isRate reports whether a setting is one of the many rates.
func (s setting) isRate() bool { return strings.HasPrefix(s.key, ratesKey+".") }

// ruleSettings returns the table of a rule's settings. If a rule omits one, the setting for
// all topics applies.
func ruleSettings(r *broker.Rule, often *limit.Rate) []setting {
	rows := []setting{
		{"pattern", pattern(&r.Pattern), "topics that the rule applies to; required, and no two rules may have the same"},
		{"history.messages", count(&r.HistoryMessages), "messages that each of these topics retains; default history.messages"},
		{"history.bytes", size(&r.HistoryBytes), "bytes that each of these topics retains, at least message.bytes; default history.bytes"},
		{"history.age", duration(&r.HistoryAge, time.Millisecond), "how long each of these topics retains a message; default history.age"},
		{"slow", word(&r.Slow, broker.Slows()...), "what a subscriber gets when it falls behind: all that the history holds (resume, the default), the newest few messages, the newest message of each key, or the end of its session"},
		{"keep", count(&r.Keep), "number of newest messages that drop_oldest keeps; only with drop_oldest; default " + strconv.Itoa(broker.DefaultKeep)},
		{"identity", truth(&r.Identity), "whether each message to these topics carries the verified subject of its publisher (by), and the public claims of its token; default false"},
		{"presence", truth(&r.Presence), "tell who is subscribed to each of these topics (PROTOCOL.md, Presence); default false"},
		{"presence_grace", duration(&r.PresenceGrace, time.Millisecond), "how long a member whose last session ended stays on the topic, so that nobody notices a reconnect; only with presence; default " + broker.DefaultPresenceGrace.String()},
		{"rate", rate(often), "rate of messages that all clients publish to all of these topics together; default no limit besides rates.publishes"},
	}
	for i := range rows {
		rows[i].key = rulesKey + "." + r.Name + "." + rows[i].key
		optional(rows[i].field)
	}
	return rows
}

// allSettings returns the table of c's settings and those of its rules.
func allSettings(c *Config) []setting {
	all := settings(c)
	for i := range c.Broker.Rules {
		r := &c.Broker.Rules[i]
		all = append(all, ruleSettings(r, rateOf(c, r.Name))...)
	}
	return all
}

// rateOf returns the rate of a rule. A Config that was not loaded may have none.
func rateOf(c *Config, rule string) *limit.Rate {
	for i := range c.Limit.Rules {
		if r := &c.Limit.Rules[i]; r.Name == rule {
			return &r.Rate
		}
	}
	return new(limit.Rate)
}

// envPrefix begins the names of our environment variables.
const envPrefix = "PUBSUBD_"

var (
	flagNames = strings.NewReplacer(storeDir, "store", ".", "-", "_", "-")
	envNames  = strings.NewReplacer(".", "_", "-", "_")
)

// flag returns the flag's name: history-age for history.age.
func (s setting) flag() string { return flagNames.Replace(s.key) }

// env returns the environment variable: PUBSUBD_HISTORY_AGE for history.age.
func (s setting) env() string { return envPrefix + strings.ToUpper(envNames.Replace(s.key)) }
