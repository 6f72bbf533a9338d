// Package config reads the daemon's settings from a file, the environment and
// flags into the packages' own Config structs.
//
// A flag beats the environment, which beats the file, which beats the default.
// All of it is strict: a name that is not in the table (settings.go), or a value
// that the setting cannot take, is an error that says where it came from and
// what would do, and all such errors are told at once. SETTINGS.md beside this
// file lists every setting.
package config

import (
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// Config is what the daemon is told. Default and Loader.Load make one with every
// field set; it is a plain value and may be copied.
type Config struct {
	Listen Listen
	TLS    TLS
	HTTP2  HTTP2

	// Insecure serves everyone who can connect, also beyond loopback, without
	// authorisation. Default false: Validate refuses to listen there.
	Insecure bool

	Log       Log
	Broker    broker.Config
	Session   session.Config
	Transport transport.Config

	// Limit has how much clients may do. Its Sessions are unused: Session.MaxSessions
	// counts. Load makes its Rules of all that Broker.Rules has, and the rates that
	// they say.
	Limit limit.Config

	// PublishHook says which application is asked before messages are published. Its
	// MessageBytes is unused: that of this Config counts. Default none.
	PublishHook hook.Config

	// Lane says how polls and small publishes are served on plain HTTP/1.1:
	// "handoff", the default, and "channel" take their connections over from
	// net/http, see internal/lane; "off" leaves them there.
	Lane string

	// Origins are those whose pages may use the daemon besides its own: as browsers
	// send them, such as https://app.example, or "*" alone for every origin. Default
	// none.
	Origins []string

	// MessageBytes is the largest payload that may be published. Default 64 KiB.
	MessageBytes int

	// DrainWindow is how long the daemon lets its clients leave once it is told to
	// stop: they are told within three quarters of it. Default 10 s; 0 tells all at
	// once and does not wait.
	DrainWindow time.Duration

	// StateFile, if not empty, is where the daemon's state is between its end and its
	// successor's start: written at the end of a drain, loaded and removed at start.
	StateFile string

	// AddressesFile, if not empty, is written once the daemon is ready:
	// {"public":"127.0.0.1:40123","admin":"127.0.0.1:40124"}, for scripts that let
	// it listen on port 0.
	AddressesFile string
}

// Listen has the addresses to listen on, as host:port. Port 0 is any free one.
type Listen struct {
	Public string // for clients; default 127.0.0.1:8080
	Admin  string // for operators: metrics, health, profiles; default 127.0.0.1:8081
	TCP    string // for clients without HTTP; empty, the default: none
}

// HTTP2 says where HTTP/2 is spoken besides TLS, on which clients may always choose it.
type HTTP2 struct {
	// Cleartext also takes it where there is no TLS, from clients that know beforehand
	// (RFC 9113, section 3.3). Default false.
	Cleartext bool
}

// Log says what is logged, and how.
type Log struct {
	Level  string // debug, info, warn or error; default info
	Format string // json or console; default json
}

// Default returns the Config that nothing was said about.
func Default() Config {
	var c Config
	for _, s := range settings(&c) {
		s.field.reset()
	}
	return c
}
