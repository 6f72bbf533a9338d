package config

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	bound := make(map[any]string)
	for _, s := range settings(&c) {
		require.Empty(t, bound[s.field.target()], "%s sets a field that has a setting", s.key)
		bound[s.field.target()] = s.key
	}
	leaves(reflect.ValueOf(&c).Elem(), "Config", func(path string, field reflect.Value) {
		pointer := field.Addr().Interface()
		require.NotEmpty(t, bound[pointer], "%s has no setting: add a row to settings.go", path)
		delete(bound, pointer)
	})
	require.Empty(t, bound, "settings of no field of Config")
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
