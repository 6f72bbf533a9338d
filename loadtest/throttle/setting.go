package throttle

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Setting is the limits that one run is made with.
type Setting struct {
	Sessions int `json:"sessions"` // limits.sessions
	Calls    int `json:"calls"`    // limits.calls
}

// String writes a setting as ParseSetting reads it.
func (s Setting) String() string { return fmt.Sprintf("%d/%d", s.Sessions, s.Calls) }

// ParseSetting reads SESSIONS/CALLS, such as 10/16.
func ParseSetting(text string) (Setting, error) {
	sessions, calls, _ := strings.Cut(text, "/")
	s, err := strconv.Atoi(sessions)
	c, err2 := strconv.Atoi(calls)
	if err != nil || err2 != nil || s < 1 || c < 1 {
		return Setting{}, fmt.Errorf("%q: write SESSIONS/CALLS, such as 10/16", text)
	}
	return Setting{Sessions: s, Calls: c}, nil
}

// A Step lets users begin little by little: Users at first, and as many more after
// each Every. The zero Step lets all begin at once.
type Step struct {
	Users int
	Every time.Duration
}

// String writes a step as ParseStep reads it.
func (s Step) String() string {
	if s.Users == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%v", s.Users, s.Every)
}

// ParseStep reads N/DURATION, such as 10/5s; empty is the zero Step.
func ParseStep(text string) (Step, error) {
	if text == "" {
		return Step{}, nil
	}
	users, every, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(users)
	d, err2 := time.ParseDuration(every)
	if err != nil || err2 != nil || n < 1 || d <= 0 {
		return Step{}, fmt.Errorf("%q: write USERS/DURATION, such as 10/5s", text)
	}
	return Step{Users: n, Every: d}, nil
}

// begin is when a user begins, after the run.
func (s Step) begin(user int) time.Duration {
	if s.Users == 0 {
		return 0
	}
	return time.Duration(user/s.Users) * s.Every
}
