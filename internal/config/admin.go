package config

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// Admin says who may change something on the admin listener.
type Admin struct {
	// KeyFile, if not empty, has the key that requests need which change something. Default
	// empty: they are refused, unless they come over a Unix socket.
	KeyFile string
}

// Bounds of a key of operators.
const (
	minAdminKey = 24
	maxAdminKey = 1024
)

// Key reads the key as it is now, without a byte order mark and the white space around it; nil: none is set. The
// error is an *Error, which does not tell what the file has.
func (a Admin) Key() ([]byte, error) {
	if a.KeyFile == "" {
		return nil, nil
	}
	fail := func(reason string, args ...any) ([]byte, error) {
		return nil, &Error{Key: "admin.key_file", Reason: fmt.Sprintf("is %q: ", a.KeyFile) + fmt.Sprintf(reason, args...)}
	}
	f, err := os.Open(a.KeyFile)
	if err != nil {
		return fail("%s: name a file that the daemon may read", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAdminKey+1))
	if err != nil {
		return fail("%s: name a file that the daemon may read", err)
	}
	key := bytes.TrimSpace(bytes.TrimPrefix(text, []byte(ByteOrderMark)))
	if len(key) < minAdminKey || len(text) > maxAdminKey || bytes.ContainsAny(key, "\r\n") {
		return fail("want one line of %d to %d bytes, such as the output of `openssl rand -base64 32`", minAdminKey, maxAdminKey)
	}
	return key, nil
}
