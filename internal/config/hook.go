package config

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// everyTopic is the pattern of them all.
const everyTopic = ">"

// maxHookTopics bounds the patterns of a hook: each is looked at for each message.
const maxHookTopics = 100

// hookSettings returns the table of the publish hook's settings.
func hookSettings(h *hook.Config) []setting {
	return []setting{
		{"hooks.publish.url", live(hookURL(&h.URL)), "where the application is asked about each message before it is published (internal/hook/HOOKS.md)"},
		{"hooks.publish.secret", live(secret(hookSecret(&h.Secret))), "the key that signs what it is asked; required with hooks.publish.url"},
		{"hooks.publish.timeout", live(duration(&h.Timeout, hook.DefaultTimeout, time.Millisecond)), "how long the application may take to answer"},
		{"hooks.publish.calls", live(count(&h.Calls, hook.DefaultCalls, math.MaxInt)), "messages that the application is asked about at one time, which are among limits.calls: fewer than those leave places to others; more wait in order, up to half of limits.calls, as long as limits.wait"},
		{"hooks.publish.topics", live(patterns(&h.Topics, everyTopic)), "the topics that it is asked about; in the file, > and * need quotes"},
	}
}

func hookURL(to *string) field {
	return fieldOf[string]{
		to: to, name: "url",
		may:    "an http or https URL, such as http://127.0.0.1:9000/publish, without a user, a password or a fragment, or nothing",
		parse:  asIs,
		format: func(s string) string { return s },
		valid:  func(s string) bool { return s == "" || isHookURL(s) },
	}
}

// isHookURL leaves a password out, since the setting is shown.
func isHookURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && u.Fragment == ""
}

func hookSecret(to *string) field {
	wrong := func(s string) string {
		if s == "" {
			return ""
		}
		if _, err := hook.KeyOf(s); err != nil {
			return err.Error()
		}
		return ""
	}
	return fieldOf[string]{
		to: to, name: "secret",
		may:    "24 bytes or more: text, or whsec_ and base64, as `openssl rand -base64 32` makes it",
		parse:  asIs,
		format: func(s string) string { return s },
		valid:  func(s string) bool { return wrong(s) == "" },
		wrong:  wrong,
	}
}

// patterns is a list of patterns, and of topics' names.
func patterns(to *[]string, def string) field {
	return fieldOf[[]string]{
		to: to, def: []string{def}, name: "patterns", isList: true,
		may:    fmt.Sprintf("topics' names, or patterns such as chat.* or prices.>, from 1 to %d, separated by commas", maxHookTopics),
		parse:  splitList,
		format: func(list []string) string { return strings.Join(list, ",") },
		valid:  func(list []string) bool { return wrongPattern(list) == "" },
		wrong:  wrongPattern,
	}
}

// wrongPattern says what is wrong with a list of patterns, or "".
func wrongPattern(list []string) string {
	if len(list) == 0 || len(list) > maxHookTopics {
		return strconv.Itoa(len(list)) + " are too few or too many"
	}
	for i, pattern := range list {
		if err := wire.CheckPattern(pattern); err != nil {
			return err.Error()
		}
		if slices.Contains(list[:i], pattern) {
			return strconv.Quote(pattern) + " is there twice"
		}
	}
	return ""
}

// wrongHook refuses a hook whose application could not tell who asks.
func wrongHook(c *Config) []*Error {
	if c.PublishHook.URL == "" || c.PublishHook.Secret != "" {
		return nil
	}
	return []*Error{{Key: "hooks.publish.url", with: "hooks.publish.secret", Reason: fmt.Sprintf(
		"is %q, but hooks.publish.secret is missing: say a key that the application knows, too, such as `openssl rand -base64 32` makes", c.PublishHook.URL)}}
}
