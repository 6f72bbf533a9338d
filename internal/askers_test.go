package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// appOnly are the methods by which the authority, the limits, the hook, the topics and
// the sessions are asked. The rooms above the app call the app instead.
var appOnly = []string{
	"Identify", "Allow", "AllowSome", "AllowAny", "Route", "Admit", "AdmitTopic", "Begin", "TryBegin", "Signatures",
	"Claim", "Send", "Delete", "ReadTopic", "OpenEphemeral", "Get", "GetBytes", "TooManyPending",
}

func TestOnlyTheAppAsks(t *testing.T) {
	for _, room := range []string{"httpapi", "lane", "transport", "listen"} {
		files, err := filepath.Glob(room + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Empty(t, asksIn(t, file, string(source)), file)
		}
	}
}

// asksIn returns the calls in a file that are the app's to make: methods of what a field
// or variable named broker, limiter, authority, grant, hook or sessions holds.
func asksIn(t *testing.T, name, source string) (calls []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, source, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if ok && slices.Contains([]string{"broker", "limiter", "authority", "grant", "hook", "sessions"}, holder(method.X)) && slices.Contains(appOnly, method.Sel.Name) {
			calls = append(calls, holder(method.X)+"."+method.Sel.Name)
		}
		return true
	})
	return calls
}

// holder returns the name of the field or variable that an expression is.
func holder(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return strings.ToLower(x.Name)
	case *ast.SelectorExpr:
		return strings.ToLower(x.Sel.Name)
	}
	return ""
}

func TestAsksAreFound(t *testing.T) {
	require.Equal(t, []string{"limiter.Admit", "broker.Delete"}, asksIn(t, "x.go", `package x

func f() {
	a.Limiter.Admit(1)
	a.Limiter.Hold(2)
	broker.Delete("a")
	http.Get("b")
}`))
}
