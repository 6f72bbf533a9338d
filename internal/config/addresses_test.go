package config

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddresses(t *testing.T) {
	for _, tt := range []struct {
		address  string
		valid    bool
		loopback bool
	}{
		{"127.0.0.1:8080", true, true},
		{"127.0.0.1:0", true, true},
		{"127.255.255.254:8080", true, true},
		{"localhost:8080", true, true},
		{"LocalHost:8080", true, true},
		{"localhost.:8080", true, true},
		{"[::1]:8080", true, true},
		{"[::ffff:127.0.0.1]:8080", true, true},

		{":8080", true, false},
		{":0", true, false},
		{"0.0.0.0:8080", true, false},
		{"[::]:8080", true, false},
		{"128.0.0.1:8080", true, false},
		{"10.0.0.1:8080", true, false},
		{"[fe80::1%eth0]:8080", true, false},
		{"localhost.example.com:8080", true, false},
		{"127.0.0.1.example.com:8080", true, false},
		{"pubsubd.internal:65535", true, false},

		{"", false, false},
		{"8080", false, false},
		{"127.0.0.1", false, false},
		{"127.0.0.1:", false, false},
		{"127.0.0.1:http", false, false},
		{"127.0.0.1:65536", false, false},
		{"127.0.0.1:-1", false, false},
		{"::1:8080", false, false},
		{"[::1", false, false},
		{"[:::1]:8080", false, false},
		{"http://localhost:8080", false, false},
		{"user@localhost:8080", false, false},
		{"local host:8080", false, false},
	} {
		require.Equal(t, tt.valid, isAddress(tt.address), "isAddress(%q)", tt.address)
		if tt.valid {
			require.Equal(t, tt.loopback, isLoopback(tt.address), "isLoopback(%q)", tt.address)
		}
	}
}

func TestOrigins(t *testing.T) {
	for origin, want := range map[string]bool{
		"https://app.example":       true,
		"https://app.example:8443":  true,
		"http://localhost:3000":     true,
		"http://127.0.0.1:3000":     true,
		"http://[::1]:3000":         true,
		"https://xn--bcher-kva.de":  true,
		"https://app.example:80":    true,
		"capacitor://localhost":     true,
		"http://localhost:1":        true,
		"http://localhost:65535":    true,
		"chrome-extension://abcdef": true,

		"":                          false,
		"*":                         false, // not one of several; alone it means every origin
		"null":                      false,
		"app.example":               false,
		"app.example:8443":          false,
		"//app.example":             false,
		"https://":                  false,
		"https://:443":              false,
		"https://app.example/":      false,
		"https://app.example/page":  false,
		"https://app.example?":      false,
		"https://app.example#":      false,
		"https://me@app.example":    false,
		"https://App.example":       false,
		"HTTPS://app.example":       false,
		"https://app.example:443":   false,
		"http://app.example:80":     false,
		"https://app.example:":      false,
		"https://app.example:08443": false,
		"https://app.example:65536": false,
		"https://app.example:http":  false,
		"https://*.app.example":     false,
		"https://bücher.de":         false,
		"https://app example":       false,
		"http://[::0:1]:3000":       false,
		"http://[::1":               false,
		"https://app.example\r\nA:": false,
	} {
		require.Equal(t, want, isOrigin(origin), "isOrigin(%q)", origin)
		if want {
			require.NoError(t, new(http.CrossOriginProtection).AddTrustedOrigin(origin), "net/http accepts it")
		}
	}
}

// A file may have a YAML list or one line with commas; flags and variables have one line.
func TestAListOfOrigins(t *testing.T) {
	two := []string{"https://app.example", "http://localhost:3000"}
	for name, yaml := range map[string]string{
		"a list":      "cors:\n  origins:\n  - https://app.example\n  - http://localhost:3000\n",
		"in brackets": "cors:\n  origins: [https://app.example, \"http://localhost:3000\"]\n",
		"in one line": "cors:\n  origins: https://app.example, http://localhost:3000\n",
	} {
		c, err := load(t, yaml, nil)
		require.NoError(t, err, name)
		require.Equal(t, two, c.Origins, name)
	}
	c, err := load(t, "", []string{"PUBSUBD_CORS_ORIGINS=https://app.example, http://localhost:3000"})
	require.NoError(t, err)
	require.Equal(t, two, c.Origins)

	c, err = load(t, "cors:\n  origins: [\"*\"]\n", nil)
	require.NoError(t, err)
	require.Equal(t, []string{"*"}, c.Origins)
	c, err = load(t, "cors:\n  origins: []\n", nil)
	require.NoError(t, err)
	require.Empty(t, c.Origins)
}

func TestOriginsAreBounded(t *testing.T) {
	many := make([]string, maxOrigins)
	for i := range many {
		many[i] = fmt.Sprintf("http://localhost:%d", i+1000)
	}
	_, err := load(t, "", nil, "--cors-origins", strings.Join(many, ","))
	require.NoError(t, err)
	_, err = load(t, "", nil, "--cors-origins", strings.Join(many, ",")+",https://app.example")
	require.ErrorContains(t, err, "101 are too many")
}

func TestHostsAreNames(t *testing.T) {
	var list []string
	f := hosts(&list)
	for _, text := range []string{"", "app.example", "app.example, *.app.example", "pubsubd", "xn--bcher-kva.de", "a_b.c-d.example", "*"} {
		require.NoError(t, f.set(text), text)
	}
	require.Equal(t, []string{"*"}, list)
	for _, text := range []string{
		"App.example", "app.example:8080", "http://app.example", "app.example.", "app..example", ".app.example", "*.", "a.*.example", "*app.example", "*,app.example", "app example",
		"bücher.de", "app.example/", "[::1]", strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "b", "a,a",
	} {
		require.Error(t, f.set(text), "%q", text)
	}
}

// A page can be rebound only to a listener without a certificate, and gains by that only on
// loopback, where nobody else connects, and if not every page may do the same.
func TestWhereAnEmptyListOfHostsAcceptsEveryName(t *testing.T) {
	for name, tt := range map[string]struct {
		change        func(c *Config)
		public, admin bool
	}{
		"default":          {func(*Config) {}, false, false},
		"localhost":        {func(c *Config) { c.Listen.Public, c.Listen.Admin = "localhost:1", "[::1]:2" }, false, false},
		"TLS":              {func(c *Config) { c.TLS = TLS{Cert: "c", Key: "k"} }, true, false},
		"every origin":     {func(c *Config) { c.Origins = []string{"*"} }, true, false},
		"some origins":     {func(c *Config) { c.Origins = []string{"https://app.example"} }, false, false},
		"public elsewhere": {func(c *Config) { c.Listen.Public = ":8080" }, true, false},
		"admin elsewhere":  {func(c *Config) { c.Listen.Admin = "10.0.0.1:8081" }, false, true},
	} {
		c := Default()
		tt.change(&c)
		public, admin := c.AcceptsEveryHost()
		require.Equal(t, tt.public, public, name)
		require.Equal(t, tt.admin, admin, name)
	}
}

func TestProxiesAreAddressesOrNetworks(t *testing.T) {
	var list []netip.Prefix
	f := proxies(&list)
	for text, want := range map[string][]string{
		"":                        nil,
		" ":                       nil,
		"10.0.0.7":                {"10.0.0.7/32"},
		"::1":                     {"::1/128"},
		"10.0.0.7/32 , fd00::/8":  {"10.0.0.7/32", "fd00::/8"},
		"127.0.0.0/8,10.1.0.0/16": {"127.0.0.0/8", "10.1.0.0/16"},
		"10.0.0.0/8,10.0.0.7":     {"10.0.0.0/8", "10.0.0.7/32"}, // networks may overlap
	} {
		require.NoError(t, f.set(text), text)
		var got []string
		for _, p := range list {
			got = append(got, p.String())
		}
		require.Equal(t, want, got, text)
		was := list
		require.NoError(t, f.set(f.text()), "%q", f.text())
		require.Equal(t, was, list)
	}
	for _, text := range []string{",", "10.0.0.7,", "10.0.0", "10.0.0.7/33", "10.0.0.7/", "/8", "10.0.0.0/08", "localhost", "[::1]", "::1%lo", "fe80::%eth0/64", "10.0.0.1-10.0.0.9", "::ffff:10.0.0.0/104"} {
		require.Error(t, f.set(text), "%q", text)
	}
}
