// Package request decodes: bytes in, typed values out. It knows forms, and neither callers nor
// rights, which the app checks. A query may have the caller's token, so it is decoded before the
// caller is known. What is wrong with it is then kept in the field Fault of the value, and the
// app returns it after it has checked the caller.
package request
