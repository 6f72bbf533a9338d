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

// maxSampled is the most that log.access and tracing.sample may be.
const maxSampled = 1_000_000_000

// hookExample begins the example of a hook's URL in errors; the name of the hook ends it.
const hookExample = "http://127.0.0.1:9000/"

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
	rows := []setting{
		{"listen.public", restart(localAddress(&c.Listen.Public, "127.0.0.1:8080, [::1]:8080 or :0", "public.sock")), "Address that clients connect to. Either host:port, or a Unix socket for a proxy, such as unix:/run/pubsubd/public.sock, to which the daemon's user and group can connect. Clients behind the socket count as 127.0.0.1, unless X-Forwarded-For names them."},
		{"listen.admin", restart(localAddress(&c.Listen.Admin, "127.0.0.1:8081, [::1]:8081 or :0", "admin.sock")), "Address for operators: metrics, health, profiles and revocations. Either host:port, or a Unix socket that only the daemon's user can connect to, such as unix:/run/pubsubd/admin.sock."},
		{"listen.tcp", restart(address(&c.Listen.TCP, true, "127.0.0.1:8082, or nothing")), "Address for clients without HTTP, which send and receive CBOR sequences over TCP; usually 127.0.0.1:8082. Not set: no such listener."},
		{"listen.acme", restart(address(&c.Listen.ACME, true, ":80, or nothing")), "Address for ACME challenges over HTTP (HTTP-01), to which the authority connects on port 80. Not set: the daemon answers only challenges over TLS (TLS-ALPN-01), on listen.public."},
		{"listen.reuseport", restart(truth(&c.Listen.ReusePort)), "Let the next daemon listen on the same addresses while this one still serves (SO_REUSEPORT, Linux only). Set it for both, under the same user. The next daemon gets no connections until this one receives the signal to stop. It waits until this one releases store.dir and auth.revocations (deploy/README.md, Upgrade)."},
		{"admin.key_file", path(&c.Admin.KeyFile), "File with the key of operators: at least 24 bytes of text, such as the output of openssl rand -base64 32. Requests to listen.admin for changes, revocations and profiles must send the key (Authorization: Bearer), unless they come over a Unix socket. The daemon reads the file for each such request, so a new key needs no reload. Not set: the daemon refuses such requests over host:port."},
		{"tls.cert", restart(path(&c.TLS.Cert)), "File with the certificate in PEM, followed by the intermediate certificates, with which clients connect over TLS and may use HTTP/2. A reload reads the file again. Not set: no TLS, unless tls.acme.domains is set."},
		{"tls.key", restart(path(&c.TLS.Key)), "File with the private key of tls.cert, in PEM. A reload reads the file again."},
		{"tls.client_ca", restart(path(&c.TLS.ClientCA)), "File with the authorities, in PEM, that sign certificates of clients. The common name is the principal; auth.certificates sets its rights. A reload reads the file again. Not set: the daemon does not ask for client certificates."},
		{"tls.client_max_age", restart(duration(&a.CertificateMaxAge, 0)), "Longest time that a certificate of a client may be valid, from notBefore to notAfter. With auth.certificates, the daemon keeps revocations of subjects for as long. 0: any time, so the daemon keeps these revocations for ever."},
		{"tls.acme.domains", restart(domains(&c.ACME.Domains)), "Names for which the daemon gets and renews certificates by ACME, instead of tls.cert. The authority must reach listen.public on port 443, or listen.acme on port 80."},
		{"tls.acme.email", restart(email(&c.ACME.Email)), "Address to which the authority sends warnings about certificates."},
		{"tls.acme.directory", restart(directory(&c.ACME.Directory)), "URL of the authority's ACME directory."},
		{"tls.acme.storage", restart(path(&c.ACME.Storage)), "Folder of mode 0700 for the private keys, the certificates and the account, which must survive restarts. Required with tls.acme.domains."},
		{"tls.acme.agree", restart(truth(&c.ACME.Agree)), "Agree to the authority's terms of service. Required with tls.acme.domains."},
		{"http2.cleartext", restart(truth(&c.HTTP2.Cleartext)), "Accept HTTP/2 with prior knowledge (h2c) in addition to HTTP/1.1 without TLS, for proxies that are configured to use it."},
		{"insecure", restart(truth(&c.Insecure)), "Serve everyone who can connect, even from other machines, without authorisation and without TLS."},
		{"plaintext", restart(truth(&c.Plaintext)), "Serve other machines without TLS, because a proxy in front of the daemon ends TLS. Authorisation is still required. The admin listener, which has no TLS, may then also listen beyond loopback."},
		{"hosts", hosts(&c.Hosts), "Names under which clients and operators may address the daemon. IP addresses and localhost are always accepted. If the list is empty, listeners on loopback without TLS accept no other name (unless cors.origins is *), and other listeners accept every name."},
		{"cors.origins", restart(origins(&c.Origins)), "Origins of the pages that may use the daemon, besides its own origin. If the list is empty, the daemon refuses cross-origin requests."},
		{"log.level", word(&c.Log.Level, "info", "debug", "warn", "error"), "Lowest level of log entries that are written."},
		{"log.format", restart(word(&c.Log.Format, "json", "console")), "Format of log entries: json, or console for people."},
		{"log.access", number{least: 1, most: maxSampled, word: "off"}.field(&c.Log.Access), "Log one of this many requests of clients, chosen at random, after it was answered: method, route, topic, status, bytes, time and client. log.level does not matter. 1: all requests. off: none. The entries have no session ids, no credentials and no queries. Commands on WebSocket and TCP connections are not logged."},
		{"tracing.endpoint", restart(serverURL(&c.Tracing.Endpoint, "http://127.0.0.1:4318")), "URL of an OpenTelemetry collector, such as http://127.0.0.1:4318, to which the daemon sends traces (OTLP over HTTP), of at most 100 publishes and 100 deliveries a second. The variables OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES apply. Not set: no traces."},
		{"tracing.sample", restart(number{least: 1, most: maxSampled, word: "off"}.field(&c.Tracing.Sample)), "Share of traced publishes: one of this many, chosen at random. off: none. If a request has the header traceparent, its sampled flag decides instead."},
		{"tracing.slow", restart(duration(&c.Tracing.Slow, 0)), "Trace deliveries that took at least this long, from the acceptance of the message to the write, if a poll or stream waited for the message. 0: none."},

		{"history.messages", count(&b.HistoryMessages), "Messages that each topic retains."},
		{"history.bytes", size(&b.HistoryBytes), "Bytes that each topic retains, at least message.bytes."},
		{"history.age", duration(&b.HistoryAge, ms), "How long each topic retains a message."},
		{"memory.budget", number{least: 1, bytes: true, word: "auto"}.field(&b.MemoryBudget), "Bytes that all histories, queues and cached frames may take together. Must be at least history.bytes. auto is 512MiB, or half of GOMEMLIMIT if that is less. The process takes up to about twice as much, unless GOMEMLIMIT is lower."},
		{"limits.topics", count(&b.MaxTopics), "Topics that may exist at the same time."},
		{"limits.sessions", count(&s.MaxSessions), "Sessions that may be open at the same time."},
		{"limits.pending_sessions", count(&l.PendingSessions), "Requests for a session that may queue when limits.sessions are open."},
		{"limits.calls", count(&l.Calls), "Publishes and changes that may be in flight at the same time. As many requests that only read may be prepared, so that they cannot hold up publishes. An answer that is being written counts in neither."},
		{"limits.waiting_calls", count(&l.WaitingCalls), "Requests that may queue for a slot of limits.calls. Publishes and changes, requests that only read, and checks of tokens have a queue of this length each. A free slot goes to the waiting addresses in turn."},
		{"limits.wait", duration(&l.Wait, ms), "How long a request may queue for a slot of limits.calls or limits.sessions, or for the check of its token, before the daemon refuses it."},
		{"limits.pending_messages_per_session", count(&l.PendingMessages), "Publishes that name the same session (session=) and may be in flight or queued at the same time."},
		{"limits.connections", number{least: 1, word: "auto"}.field(&l.Connections), "Connections of clients at the same time. auto is the number of files that the process may open, less a reserve."},
		{"limits.address_connections", number{least: 1, word: "off"}.field(&l.AddressConnections), "Connections from each address at the same time, except from trusted_proxies. off: no limit."},
		{"limits.address_calls", number{least: 1, word: "fair", older: "off"}.field(&l.AddressCalls), "Requests, except polls, from each address that may be in flight or queued. fair: no limit for one address. With either value, free slots go to the waiting addresses in turn. off is an older name for fair."},
		{"limits.subscriptions", count(&s.Subscriptions), "Topics and patterns that the client of one session may name. Topics that a pattern of the session matches count in limits.pattern_bytes instead."},
		{"limits.pattern_bytes", size(&s.PatternBytes), "Bytes of the topics that the patterns of one session match and the client follows. Each topic counts 288 bytes, which a subscription takes, and the bytes of its name: 1MiB is about 3,300 topics with names of 30 bytes. The session leaves out topics that do not fit, and sends its client a gap, unfollowed. A higher limit costs memory, and makes requests that resume longer."},
		{"limits.all_subscriptions", count(&b.MaxSubscriptions), "Subscriptions of all sessions together."},
		{"trusted_proxies", proxies(&l.TrustedProxies), "Proxies whose X-Forwarded-For header the daemon trusts, so that a client's address is the last one in the header that is not in this list. A reload applies to new connections. Not set: the daemon ignores the header."},
		{"message.bytes", number{least: 1, most: maxMessageBytes, bytes: true}.field(&c.MessageBytes), "Largest payload of a message."},
		{"idempotency.window", duration(&b.IdempotencyWindow, ms), "How long the daemon remembers the result of a publish with an idempotency key."},
		{"idempotency.keys", count(&b.IdempotencyKeys), "Idempotency keys whose results the daemon remembers, of which it drops the oldest first."},

		{"session.queue", number{least: 1, most: 1024}.field(&s.Queue), "Frames that a session buffers before its topics fall behind. A larger buffer costs memory, because even an idle session has space for all of these frames. A reload does not change sessions that have buffered a frame."},
		{"session.unacked", count(&s.Unacked), "Sent frames that a session keeps until the client acknowledges them."},
		{"session.inactivity_timeout", duration(&s.InactivityTimeout, ms), "A session ends after this long without a poll."},
		{"session.ended_remembered", restart(count(&s.EndedRemembered)), "Ended sessions that the daemon remembers, so that requests for them get 410 with the reason instead of 404."},

		{"poll.timeout", duration(&t.PollTimeout, ms), "How long a poll waits for a frame before it gets an empty answer."},
		{"poll.heartbeat", duration(&t.Heartbeat, ms), "How often an idle stream sends an empty line."},
		{"poll.max_output_delay", duration(&t.MaxOutputDelay, ms), "How long an answer of mode multiple stays open when it is idle."},
		{"poll.multiple_time", duration(&t.MultipleTime, ms), "How long an answer of mode multiple may last."},
		{"poll.answer_frames", count(&t.AnswerFrames), "Most frames in an answer that is not a stream."},
		{"poll.answer_bytes", size(&t.AnswerBytes), "Approximate limit of the bytes in an answer that is not a stream. One frame always fits."},
		{"poll.write_timeout", duration(&t.WriteTimeout, ms), "How long one write to a client may take before the daemon closes the connection."},

		{"compression.min_bytes", number{least: minCompressed, bytes: true, word: "off", means: -1}.field(&t.CompressionMinBytes), "Smallest message that the daemon compresses, once for all clients that accept it. off: no compression."},

		{"lane", restart(word(&c.Lane, "handoff", "channel", "off")), "Fast path for polls and small publishes. handoff: a frame needs no goroutine to reach a waiting poll. channel: each poll has a goroutine, which a frame wakes. off: net/http serves everything."},
		{"drain.delay", duration(&c.DrainDelay, 0), "How long the daemon continues to serve everyone after the signal to stop, while /readyz already answers 503. Set it to the time that a load balancer needs to notice. 0: it drains at once."},
		{"drain.window", duration(&c.DrainWindow, 0), "How long clients may take to leave when the daemon stops. The daemon ends their sessions within three quarters of this."},
		{storeDir, restart(path(&c.Store.Dir)), "Folder of the log that keeps topics over restarts and crashes, which the daemon creates with mode 0700. Not set: topics are only in memory."},
		{"store.sync", restart(word(&c.Store.Sync, store.SyncEverySecond, store.SyncAlways, store.SyncNever, store.SyncStop)), "When the daemon syncs messages to disk (fsync). always: before subscribers get them. 1s: once a second. never: the operating system decides. With these three, a power loss may lose messages that are not synced, but a crash of the daemon loses none. stop: only when the daemon stops, after the drain, so it publishes as fast as without a log, but a crash loses the topics and subscribers get a gap."},
		{"store.bytes", restart(number{least: minStoreBytes, bytes: true, word: "off"}.field(&c.Store.Bytes)), "Bytes that all files of the log may take, besides a reserve of at most 64 MiB. At the limit, the daemon refuses publishes. Histories may take a quarter of it; above that, the largest topics lose their oldest messages. off: no limit."},
		{"addresses_file", restart(path(&c.AddressesFile)), "File to which the daemon writes its addresses, as JSON, when it is ready. Not set: no file."},

		{"auth.keys", restart(keyFiles(&a.Keys)), "Files with the keys that verify tokens: public keys in PEM, JWKs or JWK sets. A secret for HMAC is a JWK of type oct. The daemon reads a file again when it changes."},
		{"auth.jwks", restart(jwksURL(&a.JWKS)), "URL of a JWK set with the public keys that verify tokens. The daemon fetches it every 5 minutes, and at once for an unknown key id. It refuses the keys an hour after the last successful fetch."},
		{"auth.issuer", restart(claim(&a.Issuer)), "Issuer (iss) that tokens must have. Not set: any issuer."},
		{"auth.audience", restart(claim(&a.Audience)), "Audience that tokens must include (aud). Not set: tokens with aud are refused."},
		{"auth.type", restart(claim(&a.Type)), "Type that the header of tokens must have (typ), such as at+jwt. Not set: any type."},
		{"auth.api_keys", restart(path(&a.APIKeys)), "File with API keys of back ends, which pubsubd key new creates. The daemon reads it again when it changes. If the file does not exist, the daemon starts without API keys and warns; its folder must exist."},
		{"auth.revocations", restart(path(&a.Revocations)), "File with revoked tokens, and with the topics that applications have forbidden to users. The daemon creates it, and no other daemon may use it. Not set: pubsubd revoke only ends sessions, and applications cannot forbid topics."},
		{"auth.token_max_age", restart(duration(&a.TokenMaxAge, time.Second)), "Longest time that a token may be valid, from iat to exp. The daemon keeps revocations for as long."},
		{"auth.public_claims", restart(claims(&a.PublicClaims)), "Claims of a token that other clients may see, such as name. Together at most 256 bytes of JSON."},
		{"auth.anonymous", restart(rights(&a.Anonymous)), "Rights of clients without credentials. Not set: they have no rights, if any other auth setting is set."},
		{"auth.certificates", restart(rights(&a.Certificates)), "Rights of clients with a certificate, where $sub stands for the certificate's common name. Certificates of trusted_proxies give no rights."},

		{"hooks.publish.url", serverURL(&h.URL, hookExample+"publish"), "Application that the daemon asks about each message before it publishes the message."},
		{"hooks.publish.secret", hookSecret(&h.Secret), "Key that signs the requests to the application. Required with hooks.publish.url."},
		{"hooks.publish.timeout", duration(&h.Timeout, ms), "How long the application may take to answer."},
		{"hooks.publish.calls", count(&h.Calls), "Messages about which the daemon asks the application at the same time. They also count in limits.calls: a lower number leaves slots for other requests. More messages queue for limits.wait, at most half of limits.calls."},
		{"hooks.publish.topics", patterns(&b.HookTopics), "Topics about which the daemon asks the application."},
		{"hooks.authorize.url", serverURL(&z.URL, hookExample+"authorize"), "Application that the daemon asks about each request to subscribe, including polls and streams."},
		{"hooks.authorize.secret", hookSecret(&z.Secret), "Key that signs the requests to the application. Required with hooks.authorize.url."},
		{"hooks.authorize.timeout", duration(&z.Timeout, ms), "How long the application may take to answer."},
		{"hooks.authorize.calls", count(&z.Calls), "Requests to subscribe about which the daemon asks the application at the same time. They also count in limits.calls: a lower number leaves slots for other requests. More requests queue for limits.wait, at most a quarter of limits.calls."},
		{"hooks.authorize.topics", patterns(&z.Topics), "Topics about which the daemon asks the application. It also asks when a client subscribes to a pattern that matches one of them. > does not match topics that begin with _."},
		{"hooks.authorize.cache", duration(&z.Cache, 0), "How long the daemon remembers that the application has allowed a request, instead of asking again. 0: it asks each time."},
		{"hooks.events.url", serverURL(&e.URL, hookExample+"events"), "Application to which the daemon reports when sessions open and end, and when topics get their first subscriber or lose the last one."},
		{"hooks.events.secret", hookSecret(&e.Secret), "Key that signs the requests to the application. Required with hooks.events.url."},
		{"hooks.events.timeout", duration(&e.Timeout, ms), "How long the application may take to answer."},
		{"hooks.events.topics", patterns(&e.Topics), "Topics that the daemon reports. > does not match topics that begin with _."},
		{"hooks.events.batch", number{least: 1, most: maxBatch}.field(&e.Batch), "Most events in one request."},
		{"hooks.events.delay", duration(&e.Delay, ms), "How long an event waits for others of the same request."},
		{"hooks.events.grace", duration(&e.Grace, ms), "How long a topic must have no subscriber before the daemon reports it, so that reconnects are silent."},
		{"hooks.events.queue", number{least: 1, most: maxEvents}.field(&e.Queue), "Events that may wait for the application, beyond which the daemon drops and counts events."},
		{"hooks.events.attempts", count(&e.Attempts), "How often the daemon tries to send a request before it drops and counts the events. The time between two attempts grows from 1 second to 1 minute."},
	}
	for _, kind := range limit.Kinds() {
		for _, scope := range kind.Scopes() {
			rows = append(rows, setting{rateKey(kind, scope), rate(&l.Rates[kind][scope]), "Rate at which " + ratedScopes[scope] + " may " + ratedKinds[kind] + ". off: no limit."})
		}
	}
	return rows
}

// ratesKey is the section of the rate limits: rates.polls.address.
const ratesKey = "rates"

func rateKey(kind limit.Kind, scope limit.Scope) string {
	return ratesKey + "." + kind.String() + "." + scope.String()
}

// ratedKinds and ratedScopes say what a rate limits, and whose: "each address" may "open sessions".
var (
	ratedKinds = map[limit.Kind]string{
		limit.Publishes:   "publish messages",
		limit.Sessions:    "open sessions",
		limit.Polls:       "poll, open streams, and send acks and pings on WebSocket and TCP connections",
		limit.Requests:    "send other requests, and change subscriptions on WebSocket and TCP connections",
		limit.Topics:      "create topics, by publishing or subscribing",
		limit.Connections: "open connections",
		limit.Misses:      "send requests that name an unknown session",
	}
	ratedScopes = map[limit.Scope]string{
		limit.All:       "all clients together",
		limit.Address:   "each address",
		limit.Principal: "each principal",
	}
)

// ruleSettings returns the table of a rule's settings. If a rule omits one, the setting for
// all topics applies.
func ruleSettings(r *broker.Rule, often *limit.Rate) []setting {
	rows := []setting{
		{"pattern", pattern(&r.Pattern), "Topics to which the rule applies. Required, and different for each rule."},
		{"history.messages", count(&r.HistoryMessages), "Messages that each of these topics retains. Default: history.messages."},
		{"history.bytes", size(&r.HistoryBytes), "Bytes that each of these topics retains, at least message.bytes. Default: history.bytes."},
		{"history.age", duration(&r.HistoryAge, time.Millisecond), "How long each of these topics retains a message. Default: history.age."},
		{"ephemeral", restart(truth(&r.Ephemeral)), "Deliver messages of these topics only to clients that are connected, and write none to disk, for example typing indicators and cursors. Such a rule cannot have history, slow: drop_oldest or slow: conflate, because these need a history. Default: false."},
		{"slow", word(&r.Slow, broker.Slows()...), "What a subscriber gets when it falls behind. resume, the default: all that the history holds. drop_oldest: the newest few messages. conflate: the newest message of each key. disconnect: the end of its session."},
		{"keep", count(&r.Keep), "Newest messages that drop_oldest keeps. Only a rule with slow: drop_oldest may set it. Default: " + strconv.Itoa(broker.DefaultKeep) + "."},
		{"identity", truth(&r.Identity), "Add the verified subject of the publisher (by) to each message of these topics, and the public claims of its token. Default: false."},
		{"presence", truth(&r.Presence), "Let clients see which members are subscribed to each of these topics (PROTOCOL.md, Presence). Default: false."},
		{"presence_grace", duration(&r.PresenceGrace, time.Millisecond), "How long a member stays on the topic after the server has noticed that its last connection or poll ended, so that a reconnect is silent. It is one part of a sum (PROTOCOL.md, Presence). With the default, subscribers hear that a member left 5 to 7 s after a tab is closed, and up to 47 s after a WebSocket lost its network. Clients wait up to 10 s between attempts, so only a longer grace covers an outage. It needs presence. Default: " + broker.DefaultPresenceGrace.String() + "."},
		{"rate", rate(often), "Rate of messages that all clients publish to all of these topics together. Default: no limit besides rates.publishes."},
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
		r, often := &c.Broker.Rules[i], new(limit.Rate) // a Config that was not loaded may have no rate
		if at := slices.IndexFunc(c.Limit.Rules, func(of limit.Rule) bool { return of.Name == r.Name }); at >= 0 {
			often = &c.Limit.Rules[at].Rate
		}
		all = append(all, ruleSettings(r, often)...)
	}
	return all
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
