package main

// A ledger accounts for every message of every victim. Messages are numbered from
// 1 in the order in which they are published, and each comes to each victim once,
// in order.
type ledger struct {
	accounts []account
	count    Deliveries
}

// An account is one victim's.
type account struct {
	there bool // it is subscribed
	next  int  // the message that must come next; 0: any may be the first
	from  int  // the first message that was published after it had subscribed
}

// Deliveries are what became of messages, by victims.
type Deliveries struct {
	Expected   int64 `json:"expected"`
	Delivered  int64 `json:"delivered"`  // in time
	Lost       int64 `json:"lost"`       // passed over, or not there in time
	Duplicates int64 `json:"duplicates"` // came again, or after a later one
	Gaps       int64 `json:"gaps"`       // losses that the server announced
}

func newLedger(victims int) *ledger { return &ledger{accounts: make([]account, victims)} }

// begins says that a victim has subscribed, when so many messages were published.
func (l *ledger) begins(victim, published int) {
	l.accounts[victim] = account{there: true, from: published + 1}
}

// leaves says that a victim is gone, and reports whether it had been there.
func (l *ledger) leaves(victim int) bool {
	was := l.accounts[victim].there
	l.accounts[victim].there = false
	return was
}

// comes takes a message, and reports whether it is the victim's first of this number.
func (l *ledger) comes(victim, number int) bool {
	a := &l.accounts[victim]
	expected := a.next
	if a.next == 0 {
		expected = min(a.from, number) // what was under way may come, too
	}
	if number < expected {
		l.count.Duplicates++
		return false
	}
	l.count.Lost += int64(number - expected)
	a.next = number + 1
	return true
}

// missing is how many messages from the first to the last have not come to those
// who are there.
func (l *ledger) missing(first, last int) int64 {
	var n int64
	for _, a := range l.accounts {
		if next := max(a.next, a.from, first); a.there && next <= last {
			n += int64(last + 1 - next)
		}
	}
	return n
}

// take returns what was counted since it was taken last.
func (l *ledger) take() Deliveries {
	d := l.count
	l.count = Deliveries{}
	return d
}
