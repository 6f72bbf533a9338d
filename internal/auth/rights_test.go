package auth

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestRightsCoverNamesAndPatterns(t *testing.T) {
	for _, c := range []struct {
		by, name string
		want     bool
	}{
		{"chat.42", "chat.42", true},
		{"chat.42", "chat.43", false},
		{"chat.42", "chat.42.a", false},
		{"chat.42", "chat", false},
		{"chat.42", "chat.*", false},
		{"chat.*", "chat.42", true},
		{"chat.*", "chat.*", true},
		{"chat.*", "chat.>", false},
		{"chat.*", "chat", false},
		{"chat.*", "chat.42.a", false},
		{"chat.>", "chat.42", true},
		{"chat.>", "chat.42.a", true},
		{"chat.>", "chat.*.a", true},
		{"chat.>", "chat.>", true},
		{"chat.>", "chat", false},
		{"chat.>", ">", false},
		{"*.a", "x.a", true},
		{"*.a", "*.a", true},
		{"*.a", "*.b", false},
		{"*.a", ">", false},
		{">", ">", true},
		{">", "*", true},
		{">", "a.b.c", true},
		{">", "_presence.a", false},
		{"*.a", "_presence.a", false},
		{"_presence.>", "_presence.a", true},
		{"_presence.a", "_presence.*", false},
	} {
		require.Equal(t, c.want, covers(c.by, c.name), "%s covers %s", c.by, c.name)
	}
}

// What one pattern covers is what it matches: every topic that the covered pattern matches.
func FuzzCovers(f *testing.F) {
	f.Add("a.*", "a.>", "a.b.c")
	f.Add(">", "*", "a")
	f.Add("*.>", "a.*", "a.b")
	f.Fuzz(func(t *testing.T, by, name, topic string) {
		if wire.CheckPattern(by) != nil || wire.CheckPattern(name) != nil || wire.CheckTopic(topic) != nil {
			return
		}
		if covers(by, name) && wire.Matches(name, topic) {
			require.True(t, wire.Matches(by, topic), "%s covers %s, but does not match %s", by, name, topic)
		}
		require.Equal(t, wire.Matches(by, topic), covers(by, topic), "%s and %s", by, topic)
	})
}

// To read a presence topic is to learn who is on the topic that it is about.
func TestPresenceTopicsNeedTheRightPresence(t *testing.T) {
	rights, err := ParseRights([]byte(`[
		{"topics": ["chat.*"], "allow": ["presence"]},
		{"topics": ["prices.>", "_presence.prices.>"], "allow": ["subscribe", "history", "publish", "delete"]}
	]`), "ann")
	require.NoError(t, err)
	ann := &Grant{Subject: "ann", Rights: rights}
	for _, r := range []Right{Subscribe, History} {
		require.NoError(t, ann.Allow(r, "_presence.chat.42"))
		require.NoError(t, ann.Allow(r, "_presence.chat.*"))
		require.ErrorContains(t, ann.Allow(r, "_presence.chat.>"), `"ann" may not see who is on "chat.>"`)
		require.ErrorContains(t, ann.Allow(r, "_presence.prices.a"), `"ann" may not see who is on "prices.a"`)
	}
	require.Error(t, ann.Allow(Subscribe, "chat.42"))
	require.Error(t, ann.Allow(Publish, "_presence.chat.42"))
}

func TestEntriesOnlyGrant(t *testing.T) {
	rights, err := ParseRights([]byte(`[
		{"topics": ["chat.42", "prices.>"], "allow": ["subscribe"]},
		{"topics": ["chat.42"], "allow": ["publish", "history"]},
		{"topics": ["inbox.$sub", "$sub.>"], "allow": ["subscribe"]}
	]`), "ann")
	require.NoError(t, err)
	for name, want := range map[string]string{
		"chat.42":      "subscribe publish history",
		"chat.43":      "",
		"prices.a.b":   "subscribe",
		"prices.*":     "subscribe",
		"inbox.ann":    "subscribe",
		"inbox.bob":    "",
		"inbox.$sub":   "",
		"ann.notes":    "subscribe",
		"bob.notes":    "",
		">":            "",
		"_presence.ab": "",
	} {
		var got []string
		for _, r := range AllRights() {
			if rights.allow(r, name) {
				got = append(got, string(r))
			}
		}
		require.Equal(t, want, strings.Join(got, " "), name)
	}
}

// A subject that is not one token grants nothing where $sub stands: it could name the topics
// of others.
func TestASubjectThatIsNoTokenGrantsNothing(t *testing.T) {
	for _, subject := range []string{"", "a.b", "*", ">", "a b", "ä", "$sub", "a\x00"} {
		rights, err := ParseRights([]byte(`[{"topics": ["open", "inbox.$sub"], "allow": ["subscribe"]}, {"topics": ["other"], "allow": ["subscribe"]}]`), subject)
		require.NoError(t, err)
		require.False(t, rights.allow(Subscribe, "open"), "the whole entry grants nothing: %q", subject)
		require.False(t, rights.allow(Subscribe, "inbox."+subject))
		require.True(t, rights.allow(Subscribe, "other"))
	}
}

func TestRightsAreReadStrictly(t *testing.T) {
	many := `{"topics": ["` + strings.Repeat(`a","`, 200) + `a"], "allow": ["publish"]}`
	for text, says := range map[string]string{
		``:      "rights must be a list",
		`null`:  "",
		`[]`:    "",
		`{}`:    "rights must be a list",
		`[] []`: "after top-level value",
		"[{\"topics\": [\"a\xff\"], \"allow\": [\"publish\"]}]":                                                     "invalid UTF-8",
		`[{"topics": ["a"], "allow": ["subcribe"]}]`:                                                                `"subcribe" is not a right`,
		`[{"topics": ["a"], "allow": []}]`:                                                                          "at least one element",
		`[{"allow": ["publish"]}]`:                                                                                  "at least one element",
		`[{"topics": ["a..b"], "allow": ["publish"]}]`:                                                              "entry 1",
		`[{"topics": ["a.$subs"], "allow": ["publish"]}]`:                                                           "entry 1",
		`[{"topics": ["a.>.b"], "allow": ["publish"]}]`:                                                             "'>'",
		`[{"Topics": ["a"], "allow": ["publish"]}]`:                                                                 `member "Topics" is not known`,
		`[{"topics": ["a"], "deny": ["publish"], "allow": ["publish"]}]`:                                            `member "deny" is not known`,
		`[{"topics": ["a"], "topics": [">"], "allow": ["publish"]}]`:                                                "duplicate",
		`[{"topics": "a", "allow": ["publish"]}]`:                                                                   "rights must be a list",
		`[` + strings.Repeat(`{"topics":["a"],"allow":["publish"]},`, 65) + `{"topics":["a"],"allow":["publish"]}]`: "at most 64 entries",
		`[` + many + `,` + many + `]`:                                                                               "at most 256 topics",
	} {
		_, err := ParseRights([]byte(text), "ann")
		if says == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, says, text)
		}
	}
}

func FuzzRights(f *testing.F) {
	f.Add([]byte(`[{"topics":["chat.$sub"],"allow":["subscribe"]}]`), "ann", "chat.ann")
	f.Add([]byte(`[{"topics":[">"],"allow":["publish","delete"]}]`), "", "a")
	f.Fuzz(func(t *testing.T, text []byte, subject, name string) {
		rights, err := ParseRights(text, subject)
		if err != nil {
			require.LessOrEqual(t, len(err.Error()), 400+len(text))
			return
		}
		for _, e := range rights.entries {
			for _, topic := range e.topics {
				require.NoError(t, wire.CheckPattern(topic))
			}
		}
		if wire.CheckPattern(name) == nil && rights.allow(Publish, name) {
			require.Contains(t, string(text), "publish")
		}
	})
}

// The names of a right match every topic that it allows.
func TestNamesMatchWhatIsAllowed(t *testing.T) {
	rights, err := ParseRights([]byte(`[
		{"topics": ["chat.42", "prices.>"], "allow": ["subscribe"]},
		{"topics": ["rooms.*"], "allow": ["presence", "publish"]},
		{"topics": ["inbox.$sub"], "allow": ["history", "presence"]}
	]`), "ann")
	require.NoError(t, err)
	for r, want := range map[Right][]string{
		Subscribe: {"chat.42", "prices.>", "_presence.rooms.*", "_presence.inbox.ann"},
		Publish:   {"rooms.*"},
		History:   {"_presence.rooms.*", "inbox.ann", "_presence.inbox.ann"},
		Presence:  {"rooms.*", "inbox.ann"},
		Delete:    nil,
	} {
		require.Equal(t, want, rights.Names(r), r)
		for _, name := range []string{"chat.42", "prices.a.b", "rooms.a", "_presence.rooms.a", "_presence.inbox.ann", "inbox.ann", "other"} {
			if rights.allow(r, name) {
				require.True(t, slices.ContainsFunc(want, func(by string) bool { return covers(by, name) }), "%s %s", r, name)
			}
		}
	}
}

func TestARefusalSaysWhetherCredentialsWouldHelp(t *testing.T) {
	rights, err := ParseRights([]byte(`[{"topics": ["a"], "allow": ["publish"]}]`), "ann")
	require.NoError(t, err)
	require.NoError(t, (&Grant{Subject: "ann", Rights: rights}).Allow(Publish, "a"))
	require.ErrorIs(t, (&Grant{Subject: "ann", Rights: rights}).Allow(Subscribe, "a"), problem.New(wire.CodeForbidden, "", ""))
	require.ErrorIs(t, (&Grant{}).Allow(Publish, "a"), problem.New(wire.CodeUnauthorized, "", ""))
}

func TestATokenRenewsOlderOnes(t *testing.T) {
	now := time.Now()
	old := &Grant{Issued: now, Expires: now.Add(time.Minute)}
	require.False(t, old.Renews(old))
	require.True(t, (&Grant{Issued: now.Add(time.Second), Expires: now}).Renews(old), "also with an earlier expiry")
	require.False(t, (&Grant{Issued: now.Add(-time.Second), Expires: now.Add(time.Hour)}).Renews(old))
	require.True(t, (&Grant{Issued: now, Expires: now.Add(time.Hour)}).Renews(old))
	require.True(t, (&Grant{Issued: now, Expires: old.Expires}).Renews(old), "an issuer writes iat and exp in seconds")
	require.False(t, (&Grant{Issued: now, Expires: old.Expires.Add(-time.Second)}).Renews(old))
	require.True(t, (&Grant{}).Renews(old), "an API key")
}

func TestAGrantExpires(t *testing.T) {
	now := time.Now()
	g := &Grant{Expires: now}
	require.True(t, g.HasExpired(now))
	require.False(t, g.HasExpired(now.Add(-1)))
	require.False(t, (&Grant{}).HasExpired(now))
	require.EqualValues(t, 1500, g.ExpiresMS(now.Add(-1500*time.Millisecond)))
	require.EqualValues(t, 1, g.ExpiresMS(now))
	require.Zero(t, (&Grant{}).ExpiresMS(now))
}
