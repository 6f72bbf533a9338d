package report

import (
	"encoding/json"
	"fmt"
	"io"
)

// JSON writes a Result or a SearchResult, indented, for other programs and for keeping.
func JSON(w io.Writer, r any) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("result as JSON: %w", err)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}
