package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/listen"
)

// PublicAddr returns the address that clients connect to: host:port, or a Unix socket as in
// listen.public.
func (d *Daemon) PublicAddr() string { return d.listeners.public.Address() }

// AdminAddr returns the address for metrics and health, in the same form.
func (d *Daemon) AdminAddr() string { return d.listeners.admin.Address() }

// TCPAddr returns the address for clients without HTTP, or "" if there is none.
func (d *Daemon) TCPAddr() string {
	if d.listeners.tcp == nil {
		return ""
	}
	return d.listeners.tcp.Addr().String()
}

// announce makes the daemon ready. It writes the addresses file, notifies the service
// manager, and logs the addresses.
func (d *Daemon) announce() error {
	if path := d.cfg.AddressesFile; path != "" { // the file appears whole or not at all
		text, err := json.Marshal(addresses{Public: d.PublicAddr(), Admin: d.AdminAddr(), TCP: d.TCPAddr()})
		if err == nil {
			err = os.WriteFile(path+".new", append(text, '\n'), 0o644)
		}
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			return fmt.Errorf("addresses_file: %w", err)
		}
	}
	d.state.Store(nil)
	d.manager.ready()
	scheme := "http://"
	if d.cfg.ServesTLS() {
		scheme = "https://"
	}
	ready := []zap.Field{zap.String("public", urlOf(scheme, d.PublicAddr())), zap.String("admin", urlOf("http://", d.AdminAddr()))}
	if at := d.TCPAddr(); at != "" {
		ready = append(ready, zap.String("tcp", at))
	}
	d.log.Info("ready", ready...)
	return nil
}

// urlOf returns an address for people.
func urlOf(scheme, address string) string {
	if strings.HasPrefix(address, listen.UnixPrefix) {
		return address
	}
	return scheme + address
}

// addresses are where the daemon listens, for scripts.
type addresses struct {
	Admin  string `json:"admin"`
	Public string `json:"public"`
	TCP    string `json:"tcp,omitempty"`
}
