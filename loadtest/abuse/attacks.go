package main

import "slices"

// attacks returns all, in the order in which they are made. Paces and crowds are
// what one core of a small machine can keep up against a sink that refuses nothing.
func attacks() []attack {
	all := []attack{
		{name: "slow-heads", what: "connections that send the head of a request at one byte per second", sources: 50, pace: 2000, crowd: 4000, run: slowHeads},
		{name: "slow-bodies", what: "publishes that send their body at one byte per second", sources: 50, pace: 2000, crowd: 3000, run: slowBodies},
		{name: "slow-readers", what: "streams of a busy topic whose clients do not read, with tiny buffers", sources: 50, pace: 500, crowd: 1000, tiny: true, run: slowReaders},
		{name: "half-open", what: "silent connections, half-closed polls, abandoned polls", sources: 50, pace: 2000, crowd: 3000, run: halfOpen},
		{name: "connections", what: "connections that open and close, and more held open than the limit allows", sources: 200, pace: 4000, crowd: 12000, run: connections},
		{name: "poll-flood", what: "many connections that poll one session", sources: 4, pace: 3000, crowd: 200, unhurried: true, run: pollFlood},
		{name: "topics", what: "new topics, published and subscribed to by one client", sources: 1, pace: 3000, crowd: 50, run: newTopics},
		{name: "guesses", what: "polls, PATCHes and GETs with guessed session ids", sources: 10, pace: 3000, crowd: 100, run: guesses},
		{name: "patches", what: "PATCHes that add 100 topics to one session and remove them", sources: 1, pace: 500, crowd: 20, run: patches},
		{name: "large-messages", what: "messages of 64 KiB, published from one address", sources: 1, pace: 500, crowd: 20, run: largeMessages},
		{name: "oversized", what: "heads, URLs and bodies that are too large", sources: 10, pace: 300, crowd: 30, run: oversized},
		{name: "hoarders", what: "sessions of 100 topics each that never poll, while messages of 64 KiB arrive", sources: 20, pace: 400, crowd: 40, run: hoarders},
		{name: "unread-lists", what: "lists of 1000 topics whose clients do not read them, over HTTP/1.1", sources: 20, pace: 500, crowd: 1000, tiny: true, run: unreadLists},
		{name: "unread-lists-h2", what: "the same lists over HTTP/2, with 100 streams per connection and a window of 0", sources: 20, pace: 100, crowd: 40, run: unreadLists2},
		{name: "unread-polls", what: "polls of 1000 messages whose clients do not read them", sources: 50, pace: 2000, crowd: 5000, tiny: true, run: unreadPolls},
		{name: "huge-positions", what: "invalid positions of 900 KB, from clients that do not read the refusal", sources: 10, pace: 100, crowd: 300, tiny: true, run: hugePositions},
		{name: "unread-history", what: "histories of 1000 messages whose clients do not read them, over HTTP/1.1", sources: 60, pace: 1000, crowd: 1500, tiny: true, run: unreadHistory},
		{name: "unread-session-h2", what: "one session, read over HTTP/2 with 100 streams per connection and a window of 0", sources: 60, pace: 100, crowd: 60, run: unreadSession2},
		{name: "signatures", what: "pipelined polls with badly signed ES512 tokens", sources: 50, pace: 600, crowd: 64, pipelined: 16, run: pollsWith(badlySigned(`,"kid":"1"`))},
		{name: "signatures-4", what: "the same with tokens that four keys may have signed", sources: 50, pace: 600, crowd: 200, pipelined: 16, run: pollsWith(badlySigned(""))},
		{name: "malformed-tokens", what: "the same with tokens that are none", sources: 50, pace: 600, crowd: 64, pipelined: 16, run: pollsWith(func() string { return "x" })},
		{name: "large-commands", what: "compressed commands of 7900 subscriptions each, on WebSockets", sources: 20, pace: 400, crowd: 20, unhurried: true, run: commands(7900)},
		{name: "small-commands", what: "the same with one subscription each", sources: 20, pace: 400, crowd: 20, unhurried: true, run: commands(1)},
		{name: racing, what: "polls that clients abandon for new polls of the same sessions", sources: 20, pace: 200, crowd: 40, run: racingPolls},
	}
	next := 0
	for i := range all {
		all[i].first = next
		next += all[i].sources + besideSources
	}
	return all
}

// racing is the attack whose answers are judged by themselves; see noneReplaced.
const racing = "racing-polls"

// besideSources are kept for a raid beside an attack's own; see publishBeside. No
// attack has addresses of another, which may be known to the server already.
const besideSources = 4

// attackNamed finds an attack; small is one that only shows that it works.
func attackNamed(name string, small bool) (attack, bool) {
	all := attacks()
	i := slices.IndexFunc(all, func(a attack) bool { return a.name == name })
	if i < 0 {
		return attack{}, false
	}
	if small {
		return all[i].small(), true
	}
	return all[i], true
}
