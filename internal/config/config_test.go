package config

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
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

// A field that a package adds to its Config must get a row in the table, or
// nobody could set it.
func TestEveryFieldHasASetting(t *testing.T) {
	var c Config
	wantSettingForEach(t, reflect.ValueOf(&c).Elem(), settings(&c), &c.Broker.Rules)
}

func TestEveryFieldOfARuleHasASetting(t *testing.T) {
	var r broker.Rule
	wantSettingForEach(t, reflect.ValueOf(&r).Elem(), ruleSettings(&r), &r.Name)
}

// wantSettingForEach checks that each field of v but one is set by one row.
func wantSettingForEach(t *testing.T, v reflect.Value, rows []setting, but any) {
	t.Helper()
	bound := map[any]string{but: "another table"}
	for _, s := range rows {
		require.Empty(t, bound[s.field.target()], "%s sets a field that has a setting", s.key)
		bound[s.field.target()] = s.key
	}
	leaves(v, v.Type().Name(), func(path string, field reflect.Value) {
		pointer := field.Addr().Interface()
		require.NotEmpty(t, bound[pointer], "%s has no setting: add a row to settings.go", path)
		delete(bound, pointer)
	})
	require.Empty(t, bound, "settings of no field")
}

func leaves(v reflect.Value, path string, visit func(string, reflect.Value)) {
	if v.Kind() != reflect.Struct {
		visit(path, v)
		return
	}
	for i := range v.NumField() {
		leaves(v.Field(i), path+"."+v.Type().Field(i).Name, visit)
	}
}
