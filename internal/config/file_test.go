package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Any file is read or refused with a reason. The values that were read are within bounds.
func FuzzFile(f *testing.F) {
	for _, b := range broken {
		f.Add(b.yaml)
	}
	f.Add("history: {age: 2m, bytes: 1MiB}\n? complex\n: key\n<<: *a\n")
	f.Fuzz(func(t *testing.T, yaml string) {
		c := Default()
		r := newReading(&c)
		r.readYAML("pubsubd.yaml", []byte(yaml))
		for _, e := range r.wrong {
			require.Regexp(t, `(?s)^pubsubd\.yaml(:\d+)?: .`, e.Error())
		}
		for _, s := range allSettings(&c) {
			require.NoError(t, s.check(), s.key)
		}
	})
}
