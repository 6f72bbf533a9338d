package config

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/acme"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
)

// An editor may begin a file with a byte order mark. The first block of PEM is read nevertheless.
func TestFilesInPEMMayBeginWithAByteOrderMark(t *testing.T) {
	pair, first, second := certtest.New(t), certtest.NewAuthority(t), certtest.NewAuthority(t)
	two, err := os.ReadFile(second.File)
	require.NoError(t, err)
	for file, more := range map[string][]byte{pair.Cert: two, pair.Key: nil, first.File: two} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, slices.Concat([]byte("\ufeff"), text, more), 0o600))
	}
	files := TLS{Cert: pair.Cert, Key: pair.Key, ClientCA: first.File}
	served, err := files.Load()
	require.NoError(t, err)
	require.Len(t, served.Certificate, 2)
	authorities, err := files.LoadClientCA()
	require.NoError(t, err)
	require.Len(t, authorities, 2)
}

// Load reads the files each time, so that a certificate can be replaced at any time.
func TestACertificateIsReadAgain(t *testing.T) {
	pair := certtest.New(t)
	c := Default()
	require.False(t, c.TLS.On())
	c.TLS = TLS{Cert: pair.Cert, Key: pair.Key}
	require.True(t, c.TLS.On())
	require.NoError(t, c.Validate())
	old, err := c.TLS.Load()
	require.NoError(t, err)
	pair.Write(t)
	renewed, err := c.TLS.Load()
	require.NoError(t, err)
	require.NotEqual(t, old.Certificate, renewed.Certificate)

	require.NoError(t, os.Remove(pair.Key))
	_, err = c.TLS.Load()
	require.ErrorContains(t, err, "tls.key is")
	require.ErrorContains(t, c.Validate(), "tls.key is")
}

// TLS does not authorise clients.
func TestTLSIsNoAuthorisation(t *testing.T) {
	pair := certtest.New(t)
	c := Default()
	c.TLS = TLS{Cert: pair.Cert, Key: pair.Key}
	c.Listen.Public = "0.0.0.0:8443"
	require.ErrorContains(t, c.Validate(), "no authorisation is configured")
	c.TLS.ClientCA = certtest.NewAuthority(t).File
	require.ErrorContains(t, c.Validate(), "no authorisation is configured", "without auth.certificates they give no rights")
	c.Insecure = true
	require.NoError(t, c.Validate())
}

func TestAClientCAIsAFileOfCertificatesAndNeedsTLS(t *testing.T) {
	pair, authority := certtest.New(t), certtest.NewAuthority(t)
	c := Default()
	none, err := c.TLS.LoadClientCA()
	require.NoError(t, err)
	require.Nil(t, none)

	c.TLS.ClientCA = authority.File
	require.ErrorContains(t, c.Validate(), "tls.client_ca is \""+authority.File+"\", but there is no TLS: set tls.cert and tls.key")
	c.TLS.Cert, c.TLS.Key = pair.Cert, pair.Key
	require.NoError(t, c.Validate())
	some, err := c.TLS.LoadClientCA()
	require.NoError(t, err)
	require.NotNil(t, some)

	c.Auth.Certificates = `[{"topics":["$sub.>"],"allow":["publish"]}]`
	require.NoError(t, c.Validate())
	c.TLS.ClientCA = ""
	require.ErrorContains(t, c.Validate(), "auth.certificates is set, but clients cannot show certificates: name their authorities in tls.client_ca")

	c.TLS.ClientCA = pair.Key
	require.ErrorContains(t, c.Validate(), "which has no certificate in PEM")
	c.TLS.ClientCA = "/nowhere"
	require.ErrorContains(t, c.Validate(), "name a file that the daemon may read")
}

// A file of authorities with half of a certificate is an error: a reload would revoke the
// certificates of that authority.
func TestHalfOfAnAuthorityIsAnError(t *testing.T) {
	first, second := certtest.NewAuthority(t), certtest.NewAuthority(t)
	one, err := os.ReadFile(first.File)
	require.NoError(t, err)
	two, err := os.ReadFile(second.File)
	require.NoError(t, err)
	whole := append(one, two...)
	for text, want := range map[string]string{
		string(whole):                 "",
		string(whole[:len(whole)-30]): "holds 2 blocks of PEM, but only 1 are whole",
		string(one) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n": "whose certificate 2 cannot be read",
	} {
		require.NoError(t, os.WriteFile(first.File, []byte(text), 0o600))
		some, err := TLS{ClientCA: first.File}.LoadClientCA()
		if want == "" {
			require.NoError(t, err)
			require.Len(t, some, 2)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}

// ACME replaces the files, and needs a folder and an agreement.
func TestACMENeedsNamesAFolderAndAnAgreement(t *testing.T) {
	pair := certtest.New(t)
	whole := acme.Config{Domains: []string{"app.example"}, Storage: "/var/lib/pubsubd/acme", Agree: true, Directory: acme.DefaultDirectory}
	for wrong, change := range map[string]func(c *Config){
		"":                            func(*Config) {},
		"tls.acme.storage is missing": func(c *Config) { c.ACME.Storage = "" },
		"tls.acme.agree is false":     func(c *Config) { c.ACME.Agree = false },
		"tls.acme.domains is set together with tls.cert":       func(c *Config) { c.TLS = TLS{Cert: pair.Cert, Key: pair.Key} },
		"tls.acme has settings, but no names":                  func(c *Config) { c.ACME.Domains = nil },
		"tls.acme.domains is":                                  func(c *Config) { c.ACME.Domains = []string{"*.app.example"} },
		"tls.acme.email is":                                    func(c *Config) { c.ACME.Email = "Ops <ops@app.example>" },
		"tls.acme.directory is":                                func(c *Config) { c.ACME.Directory = "http://127.0.0.1/dir" },
		"tls.acme.domains is set, but listen.public is a Unix": func(c *Config) { c.Listen.Public = "unix:/run/pubsubd/public.sock" },
	} {
		c := Default()
		c.ACME = whole
		require.True(t, c.ServesTLS())
		change(&c)
		if err := c.Validate(); wrong == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, wrong)
		}
	}
	c := Default()
	c.ACME, c.TLS.ClientCA = whole, certtest.NewAuthority(t).File
	require.NoError(t, c.Validate(), "clients may show certificates")
	c.Listen.ACME = "0.0.0.0:80"
	require.NoError(t, c.Validate(), "it only answers challenges")
	c = Default()
	c.Listen.ACME = ":80"
	require.ErrorContains(t, c.Validate(), "tls.acme has settings, but no names")
}
