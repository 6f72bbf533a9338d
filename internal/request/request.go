// Package request decodes: bytes in, typed values out. It knows forms, and neither callers nor
// rights, which the app checks. Where a request may state a token, and the answer to a wrong
// request would help a stranger, the fault is part of the value: the app returns it after its
// checks.
package request
