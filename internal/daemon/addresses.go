package daemon

import (
	"encoding/json"
	"os"
)

// addresses are where the daemon listens.
type addresses struct {
	Admin  string `json:"admin"`
	Public string `json:"public"`
	TCP    string `json:"tcp,omitempty"`
}

// writeAddresses tells a script where the daemon listens. The file appears whole
// or not at all. An empty path writes nothing.
func writeAddresses(path string, a addresses) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
