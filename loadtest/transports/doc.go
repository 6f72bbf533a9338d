// Package transports measures how fast one client, or a few, can be sent many
// messages over each transport and in each format, as the article on Silverlight
// 4's polling duplex and net.tcp did, and beside two floors (package bare).
//
// Connections are plain sockets, requests are prepared and carry a browser's
// headers, and what arrives is compared with the bytes that a message must have
// rather than decoded: reading must cost far less than sending. Nothing goes
// unread all the same: every byte belongs to a message that was expected, to a
// frame that is read in full, or is an error.
package transports
