package main

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config/certtest"
)

// serveSecure starts a daemon that speaks TLS, with a certificate that this machine
// does not know.
func serveSecure(t *testing.T) (*served, certtest.Pair) {
	t.Helper()
	pair := certtest.New(t)
	s := serveProcess(t, "--tls-cert", pair.Cert, "--tls-key", pair.Key)
	s.public = strings.Replace(s.public, "http://", "https://", 1)
	return s, pair
}

func TestCommandsTrustAPrivateAuthority(t *testing.T) {
	t.Parallel()
	s, pair := serveSecure(t)
	env := []string{serverEnv + "=" + s.public, adminEnv + "=" + s.admin}
	trusting := append([]string{authorityEnv + "=" + pair.Cert}, env...)
	for _, command := range [][]string{
		{"publish", "a", `"m1"`},
		{"subscribe", "a", "--from=oldest", "--count=1"},
		{"topics"},
		{"topics", "delete", "a"},
		{"sessions"}, // of the admin listener, which speaks no TLS
		{"health", "--timeout=1m"},
	} {
		r := run(t, trusting, command...)
		require.Zero(t, r.code, "%v: %s", command, r.stderr)
		r = run(t, env, append(command, "--ca", pair.Cert)...)
		require.Zero(t, r.code, "%v: %s", command, r.stderr)
	}

	other := certtest.New(t)
	for _, command := range [][]string{{"publish", "a", "1"}, {"topics"}, {"topics", "delete", "a", "--ca", other.Cert}} {
		r := run(t, env, command...)
		require.Equal(t, exitRunTime, r.code)
		require.Contains(t, r.stderr, "certificate signed by unknown authority")
		require.Contains(t, r.stderr, "--ca or PUBSUBD_CA")
	}
	for file, says := range map[string]string{pair.Key: "no certificate in PEM", pair.Cert + ".gone": "no such file", "": "--ca"} {
		for _, command := range [][]string{{"publish", "a", "1"}, {"topics"}} {
			r := run(t, trusting, append(command, "--ca="+file)...)
			require.Equal(t, exitUsage, r.code, "%v %s", command, r.stderr)
			require.Contains(t, r.stderr, says)
		}
	}
}

// A daemon that knows people by their certificates.
func TestCommandsShowAClientCertificate(t *testing.T) {
	pair, authority := certtest.New(t), certtest.NewAuthority(t)
	ann := authority.IssueFiles(t, "ann", time.Now().Add(time.Hour))
	s := serveProcess(t, "--tls-cert", pair.Cert, "--tls-key", pair.Key, "--tls-client-ca", authority.File, "--listen-tcp=127.0.0.1:0",
		"--auth-certificates", `[{"topics":["$sub.>"],"allow":["publish","subscribe"]}]`)
	server := []string{serverEnv + "=" + strings.Replace(s.public, "http://", "https://", 1), authorityEnv + "=" + pair.Cert}
	asAnn := append([]string{certEnv + "=" + ann.Cert, certKeyEnv + "=" + ann.Key}, server...)
	flags := []string{"--cert", ann.Cert, "--cert-key", ann.Key}
	for _, command := range [][]string{
		{"publish", "ann.a", `"m1"`, "--key=k"},
		{"subscribe", "ann.a", "--from=oldest", "--count=1"},
		{"subscribe", "ann.a", "--from=oldest", "--count=1", "--transport=tcp", "--tcp", s.tcp},
		{"topics"},
	} {
		r := run(t, asAnn, command...)
		require.Zero(t, r.code, "%v: %s", command, r.stderr)
		require.NotContains(t, r.stdout+r.stderr, "forbidden")
		r = run(t, server, append(command, flags...)...)
		require.Zero(t, r.code, "%v: %s", command, r.stderr)
	}
	stranger := certtest.NewAuthority(t).IssueFiles(t, "ann", time.Now().Add(time.Hour))
	for _, c := range []struct {
		name, topic string
		args        []string
		code        int
		says        string
	}{
		{"none", "ann.a", nil, exitRunTime, "unauthorized"},
		{"of another user", "bob.a", flags, exitRunTime, "forbidden"},
		{"of another authority", "ann.a", []string{"--cert", stranger.Cert, "--cert-key", stranger.Key}, exitRunTime, "tls.client_ca"},
		{"without its key", "ann.a", []string{"--cert", ann.Cert}, exitUsage, "--cert-key or PUBSUBD_CERT_KEY"},
		{"only the key", "ann.a", []string{"--cert-key", ann.Key}, exitUsage, "--cert or PUBSUBD_CERT"},
		{"with another key", "ann.a", []string{"--cert", ann.Cert, "--cert-key", stranger.Key}, exitUsage, "its private key"},
		{"no file", "ann.a", []string{"--cert", "/gone", "--cert-key", ann.Key}, exitUsage, "/gone: no such file"},
	} {
		r := run(t, server, append([]string{"publish", c.topic, "1"}, c.args...)...)
		require.Equal(t, c.code, r.code, "%s: %s", c.name, r.stderr)
		require.Contains(t, r.stderr, c.says, c.name)
	}
}

// The files of a certificate are renewed while a command runs. New connections show the new one.
func TestACommandShowsARenewedCertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	issuer := certtest.NewAuthority(t)
	old, renewed := issuer.IssueFiles(t, "old", time.Now().Add(time.Hour)), issuer.IssueFiles(t, "renewed", time.Now().Add(time.Hour))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	a := bindAuthority(flags)
	require.NoError(t, flags.Parse([]string{"--ca", ca, "--cert", old.Cert, "--cert-key", old.Key}))
	config, err := a.tls()
	require.NoError(t, err)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	ask := func() (name string, err error) {
		resp, err := c.Get(server.URL)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return string(text), err
	}
	name, err := ask()
	require.NoError(t, err)
	require.Equal(t, "old", name)
	require.NoError(t, os.Rename(renewed.Cert, old.Cert))
	_, err = ask()
	require.ErrorContains(t, err, "its private key", "only one of the files is new")
	require.NoError(t, os.Rename(renewed.Key, old.Key))
	name, err = ask()
	require.NoError(t, err)
	require.Equal(t, "renewed", name)
}

// In a container serve and the commands beside it have one environment.
func TestCommandsFindADaemonThatSpeaksTLSByItsEnvironment(t *testing.T) {
	s, pair := serveSecure(t)
	r := run(t, []string{
		listenPublicEnv + "=:" + port(t, s.public), listenAdminEnv + "=:" + port(t, s.admin), serveCertEnv + "=" + pair.Cert, authorityEnv + "=" + pair.Cert,
	}, "publish", "a", "1")
	require.Zero(t, r.code, r.stderr)
}

// As a certificate is renewed: new files, then SIGHUP.
func TestSIGHUPRenewsTheCertificate(t *testing.T) {
	t.Parallel()
	s, pair := serveSecure(t)
	pair.Write(t)
	publish := []string{"publish", "a", "1", "--ca", pair.Cert, "--server", s.public}
	require.Equal(t, exitRunTime, run(t, nil, publish...).code, "it has the old one")
	s.signal(syscall.SIGHUP)
	require.Eventually(t, func() bool { return run(t, nil, publish...).code == 0 }, patience, 10*time.Millisecond)

	require.NoError(t, os.WriteFile(pair.Key, nil, 0o600))
	s.signal(syscall.SIGHUP)
	s.waitForLog("nothing was reloaded")
	require.Contains(t, s.stderr.String(), "tls.key")
	require.Zero(t, run(t, nil, publish...).code)
}

func TestConfigCheckLooksAtTheCertificate(t *testing.T) {
	pair := certtest.New(t)
	file := filepath.Join(t.TempDir(), "pubsubd.yaml")
	require.NoError(t, os.WriteFile(file, []byte("tls:\n  cert: "+pair.Cert+"\n  key: "+pair.Key+"\n"), 0o600))
	check := []string{"config", "check", "--config", file}
	require.Contains(t, run(t, nil, check...).stdout, "ok\n")
	require.NoError(t, os.Remove(pair.Key))
	r := run(t, nil, check...)
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, file+":3: tls.key")
}
