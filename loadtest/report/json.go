package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/pubsubd/pubsubd/loadtest"
)

// JSON writes a result, indented, for other programs and for keeping.
func JSON(w io.Writer, r loadtest.Result) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("result as JSON: %w", err)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}
