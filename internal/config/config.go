// Package config reads the daemon's settings from a file, the environment and flags into
// the Config structs of the packages.
//
// A flag overrides the environment, which overrides the file, which overrides the default.
// An unknown name and an invalid value are errors, which say where the setting came from and
// what to write instead. All errors are reported at once. SETTINGS.md lists every setting.
package config

import (
	"time"

	"github.com/pubsubd/pubsubd/internal/acme"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/store"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// Config is the configuration of the daemon. Default and Loader.Load set every field.
// It is a plain value and may be copied.
type Config struct {
	Listen Listen
	Admin  Admin
	TLS    TLS
	ACME   acme.Config // instead of TLS.Cert and TLS.Key; default none
	HTTP2  HTTP2

	// Insecure serves other machines even without authorisation and TLS. Default
	// false: Validate then refuses addresses beyond loopback that lack either.
	Insecure bool

	// Plaintext serves other machines without TLS, because TLS ends at a proxy in front
	// of the daemon. It still needs authorisation. Default false.
	Plaintext bool

	// Auth says whose credentials are accepted. Default none: then everyone may do everything.
	Auth auth.Config

	Log       Log
	Tracing   observe.TracesConfig // default: no endpoint, one of 100, 1 s
	Broker    broker.Config
	Session   session.Config
	Transport transport.Config

	// Limit bounds what clients may do. Its Sessions are unused: Session.MaxSessions
	// applies. Load gives it a rule for each of Broker.Rules, with its rate.
	Limit limit.Config

	// PublishHook names the application that checks messages before they are published.
	// Its MessageBytes is unused: MessageBytes below applies. Default none.
	PublishHook hook.Config

	// AuthorizeHook names the application that is asked about subscriptions. Default none.
	AuthorizeHook hook.AuthorizeConfig

	// EventsHook names the application that hears of sessions and topics. Default none.
	EventsHook hook.EventsConfig

	// Lane selects how polls and small publishes over plain HTTP/1.1 are served. "handoff",
	// the default, and "channel" move their connections from net/http to internal/lane;
	// "off" leaves them in net/http.
	Lane string

	// Origins are the other origins whose pages may use the daemon, as browsers send
	// them, such as https://app.example; or "*" alone for every origin. Default none.
	Origins []string

	// Hosts are the names under which the daemon may be addressed, besides IP addresses and
	// localhost: DNS names, *.name for all names with one label more, or "*" alone for every
	// name. Default none; see AcceptsEveryHost.
	Hosts []string

	// MessageBytes is the largest payload of a message. Default 64 KiB.
	MessageBytes int

	// DrainDelay is how long the daemon still serves everyone after it was told to stop, while
	// readiness fails, so that load balancers stop sending clients. Default 0.
	DrainDelay time.Duration

	// DrainWindow is how long a drain may take when the daemon stops. Sessions end within
	// three quarters of it. Default 10 s; 0 ends all sessions at once and does not wait.
	DrainWindow time.Duration

	// Store keeps topics in a write-ahead log. Default none.
	Store Store

	// AddressesFile, if not empty, is written when the daemon is ready, for scripts that let
	// it listen on port 0: {"public":"127.0.0.1:40123","admin":"127.0.0.1:40124"}.
	AddressesFile string
}

// Listen has the addresses to listen on, as host:port. Port 0 is any free port. Public
// and Admin may also be Unix sockets: unix:/run/pubsubd/admin.sock.
type Listen struct {
	Public string // for clients; default 127.0.0.1:8080
	Admin  string // for operators: metrics, health, profiles; default 127.0.0.1:8081
	TCP    string // for clients without HTTP; default empty: no listener
	// ReusePort lets two daemons of one user listen on the same addresses: the next one starts
	// while the old one still serves. Default false.
	ReusePort bool

	ACME string // for challenges of ACME over HTTP; default empty: no listener
}

// HTTP2 configures HTTP/2. Over TLS, clients may always choose it.
type HTTP2 struct {
	// Cleartext accepts HTTP/2 without TLS, from clients with prior knowledge
	// (RFC 9113, section 3.3). Default false.
	Cleartext bool
}

// Store configures the write-ahead log.
type Store struct {
	Dir   string         // folder of the log; default empty: no log
	Sync  store.SyncMode // default store.SyncEverySecond
	Bytes int            // limit of all files together; default 0: no limit
}

// Log is the level and the format of log entries, and how many requests are logged.
type Log struct {
	Level  string // debug, info, warn or error; default info
	Format string // json or console; default json
	Access int    // log one of this many requests; default 0: none
}

// Default returns the Config of all defaults.
func Default() Config {
	c := Config{
		Listen:      Listen{Public: "127.0.0.1:8080", Admin: "127.0.0.1:8081"},
		ACME:        acme.Config{Directory: acme.DefaultDirectory},
		Log:         Log{Level: "info", Format: "json"},
		Tracing:     observe.TracesConfig{Sample: 100, Slow: time.Second},
		Auth:        auth.Config{TokenMaxAge: auth.DefaultTokenMaxAge},
		Broker:      broker.Config{HookTopics: []string{">"}}.WithDefaults(),
		Session:     session.Config{}.WithDefaults(),
		Transport:   transport.Config{}.WithDefaults(),
		Limit:       limit.Config{}.WithDefaults(),
		PublishHook: hook.Config{Timeout: hook.DefaultTimeout, Calls: hook.DefaultCalls},
		AuthorizeHook: hook.AuthorizeConfig{
			Config: hook.Config{Timeout: hook.DefaultTimeout, Calls: hook.DefaultCalls},
			Topics: []string{">"}, Cache: hook.DefaultCache,
		},
		EventsHook:   hook.EventsConfig{Topics: []string{">"}}.WithDefaults(),
		Lane:         "handoff",
		MessageBytes: 64 << 10,
		DrainWindow:  10 * time.Second,
		Store:        Store{Sync: store.SyncEverySecond},
	}
	c.Broker.MemoryBudget = 0 // auto
	return c
}
