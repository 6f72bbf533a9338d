// Package loadtest measures a publish/subscribe server over the network, as an
// instrument: it publishes on schedule and not on answer, measures latency at
// the receiver from the scheduled instant, accounts for every delivery of every
// client, and watches itself, so that it can say when it was the bottleneck.
//
// What is sent is in the scenarios (broadcast.go, collab.go, steady.go), when in
// schedule.go, by whom in run.go and publish.go over the packages client and
// eventloop, what happened in verify.go and result.go, and what it means in
// verdict.go. Scenarios do no I/O and take the time as an argument.
//
// The clients may be in several processes: crew.go is the side that publishes,
// agent.go and portion.go are the side that has clients, control.go is what they
// say to each other, and divide.go how a test is divided.
//
// A test is one call of RunBroadcast, RunCollab or RunSteady. Calls share
// nothing, but two at once measure each other.
package loadtest
