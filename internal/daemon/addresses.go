package daemon

import (
	"encoding/json"
	"os"
)

// writeAddresses tells a script where the daemon listens. The file appears whole
// or not at all. An empty path writes nothing.
func writeAddresses(path, public, admin string) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(map[string]string{"public": public, "admin": admin})
	if err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
