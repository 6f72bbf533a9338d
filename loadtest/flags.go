package loadtest

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/loadtest/client"
)

// The names by which a configuration is set, on a command line and in a scenario
// file alike; a ConfigError speaks of them. Each function binds what its scenario
// has besides what the others bind.

// BindCommon binds what every scenario has.
func BindCommon(f *pflag.FlagSet, c *Common) {
	BindTarget(f, c)
	f.StringVar((*string)(&c.Mode), "mode", string(c.Mode), "mode of polls: single, batch, multiple or stream")
	f.StringVar((*string)(&c.Transport), "transport", string(c.Transport), "transport: longpoll, stream, sse or websocket; default: polls as --mode says")
	f.StringVar((*string)(&c.Format), "format", string(c.Format), "format of frames: json or cbor")
	f.BoolVar(&c.Stateless, "stateless", c.Stateless, "poll by position, without sessions")
	f.IntVar(&c.Subscriptions, "subscriptions", c.Subscriptions, "topics of each client: its own, and quiet ones")
	f.IntVar(&c.Publishers, "publishers", c.Publishers, "connections for publishing, opened first")
	f.IntVar(&c.MaxPublishers, "max-publishers", c.MaxPublishers, "largest number of connections for publishing")
	f.IntVar(&c.Connecting, "connecting", c.Connecting, "clients that connect at the same time")
	f.DurationVar(&c.Settle, "settle", c.Settle, "pause between connecting and the test")
	f.DurationVar(&c.Drain, "drain", c.Drain, "time to wait for missing deliveries at the end")
	f.DurationVar(&c.MaxP99, "max-p99", c.MaxP99, "objective: the 99th percentile of latency; 0 means none")
	f.Int64Var(&c.MaxLoss, "max-loss", c.MaxLoss, "objective: deliveries that may be lost")
}

// BindTarget binds which server is measured, and how it is spoken to.
func BindTarget(f *pflag.FlagSet, c *Common) {
	f.StringVar(&c.Target, "target", c.Target, "base URL or host:port of a running server; default: start one")
	f.StringVar(&c.Admin, "admin", c.Admin, "base URL or host:port of the target's admin listener, to measure its memory and bytes")
	f.IntVar(&c.ServerPID, "server-pid", c.ServerPID, "process id of the target on this machine, to measure the CPU time of it and its descendants, and without --admin their memory")
	f.StringVar(&c.Dialect, "dialect", c.Dialect, "protocol of the target: "+strings.Join(client.Dialects(), ", "))
	f.StringVar(&c.SubscribePath, "subscribe-path", c.SubscribePath, "sse, nchan: path of a topic's messages, with {topic} in it")
	f.StringVar(&c.PublishPath, "publish-path", c.PublishPath, "sse, nchan: path to post a topic's messages to, with {topic} in it")
	f.StringVar(&c.APIKey, "api-key", c.APIKey, "centrifugo: the key of its API")
	f.StringVar(&c.Token, "token", c.Token, "mercure, sse: the bearer token of publishes")
}

// BindBroadcast binds a broadcast's own but for the period: a search has several.
func BindBroadcast(f *pflag.FlagSet, c *BroadcastConfig) {
	f.IntVar(&c.Clients, "clients", c.Clients, "clients, over all topics; with --search, clients of the first trial")
	f.IntVar(&c.Topics, "topics", c.Topics, "topics, with as many clients on each; more --publishers keep a burst short")
	f.IntVar(&c.MessageBytes, "message-bytes", c.MessageBytes, "size of each message's payload; 0 means 20 short strings")
	f.IntVar(&c.Bursts, "bursts", c.Bursts, "bursts that are recorded")
	f.IntVar(&c.Warmup, "warmup-bursts", c.Warmup, "bursts before the recorded ones")
}

// BindTopics binds what both patterns of a collaboration have.
func BindTopics(f *pflag.FlagSet, topics, clientsPerTopic *int) {
	f.IntVar(topics, "topics", *topics, "topics")
	f.IntVar(clientsPerTopic, "clients-per-topic", *clientsPerTopic, "clients on each topic")
}

// BindVoices binds what is of clients that publish.
func BindVoices(f *pflag.FlagSet, c *Common) {
	f.BoolVar(&c.Voices, "publish-on-socket", c.Voices, "websocket: each client publishes on its own connection, not by HTTP on others")
}

// BindRounds binds what the pattern rounds has besides.
func BindRounds(f *pflag.FlagSet, c *CollabConfig) {
	f.DurationVar(&c.Delay, "delay", c.Delay, "rounds: pause of a topic between rounds")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "rounds: number of rounds in each topic")
	f.DurationVar(&c.RoundTimeout, "round-timeout", c.RoundTimeout, "rounds: time after which a missing message counts as lost")
}

// BindSteady binds what the pattern steady has besides.
func BindSteady(f *pflag.FlagSet, c *SteadyConfig) {
	f.DurationVar(&c.Period, "period", c.Period, "steady: time between two messages of one client")
	f.DurationVar(&c.Warmup, "warmup", c.Warmup, "steady: time before the recorded part")
	f.DurationVar(&c.Duration, "duration", c.Duration, "steady: recorded time")
}
