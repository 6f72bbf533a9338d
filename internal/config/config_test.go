package config

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/limit"
)

func TestDefaultIsValidAndComplete(t *testing.T) {
	c := Default()
	require.NoError(t, c.Validate())
	require.Equal(t, "127.0.0.1:8080", c.Listen.Public)
	require.Equal(t, "127.0.0.1:8081", c.Listen.Admin)
	require.Equal(t, 64<<10, c.MessageBytes)
	require.Equal(t, 10*time.Second, c.DrainWindow)
	require.Equal(t, 32, c.Session.Queue)
	require.False(t, c.Insecure)
}

// A field that a package adds to its Config needs a row in the table. Otherwise nobody could
// set it.
func TestEveryFieldHasASetting(t *testing.T) {
	var c Config
	r := &c.Limit.Rates
	wantSettingForEach(t, reflect.ValueOf(&c).Elem(), settings(&c), &c.Broker.Rules, &c.Limit.Rules, &c.Limit.Sessions, &c.Session.Slots, &c.Session.Revoked, &c.Session.Forbidden, &c.PublishHook.MessageBytes, &c.AuthorizeHook.MessageBytes, &c.EventsHook.MessageBytes, &c.EventsHook.Calls, &c.Broker.WatchedTopics, &c.Session.Events, &c.Session.Presence, &c.Transport.RestTimeout,
		&r[limit.Connections][limit.Principal], &r[limit.Misses][limit.Principal])
}

func TestEveryFieldOfARuleHasASetting(t *testing.T) {
	var r rule
	wantSettingForEach(t, reflect.ValueOf(&r).Elem(), ruleSettings(&r.Rule, &r.Rate), &r.Name)
}

// wantSettingForEach checks that exactly one row sets each field of v, except the given ones.
func wantSettingForEach(t *testing.T, v reflect.Value, rows []setting, except ...any) {
	t.Helper()
	bound := make(map[any]string)
	for _, field := range except {
		bound[field] = "another table, or none"
	}
	for _, s := range rows {
		require.Empty(t, bound[s.target], "%s sets a field that has a setting", s.key)
		bound[s.target] = s.key
	}
	leaves(v, v.Type().Name(), func(path string, field reflect.Value, isLeaf bool) (found bool) {
		pointer := field.Addr().Interface()
		_, found = bound[pointer]
		require.True(t, found || !isLeaf, "%s has no setting: add a row to settings.go", path)
		delete(bound, pointer)
		return found
	})
	require.Empty(t, bound, "these settings have no field")
}

// leaves visits v and, unless visit found it, its fields or elements.
func leaves(v reflect.Value, path string, visit func(path string, v reflect.Value, isLeaf bool) (found bool)) {
	isStruct, isArray := v.Kind() == reflect.Struct, v.Kind() == reflect.Array
	switch {
	case visit(path, v, !isStruct && !isArray):
	case isStruct:
		for i := range v.NumField() {
			leaves(v.Field(i), path+"."+v.Type().Field(i).Name, visit)
		}
	case isArray:
		for i := range v.Len() {
			leaves(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit)
		}
	}
}
