package config

import "fmt"

// Doubts returns what is allowed in c and may not be meant, each with what to do about
// it.
func (c Config) Doubts() []string {
	var doubts []string
	if h := &c.PublishHook; h.URL != "" && h.Calls >= c.Limit.Calls {
		doubts = append(doubts, fmt.Sprintf("hooks.publish.calls is %d, not less than limits.calls (%d): "+
			"publishes that wait for a slow application may take every place; lower it, or raise limits.calls, to leave some to other requests",
			h.Calls, c.Limit.Calls))
	}
	return doubts
}
