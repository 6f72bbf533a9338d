// Package soak proves by positions that every subscriber of pubsubd got every
// message exactly once and in order, or was told of a gap that is exactly right,
// while everything around it goes wrong: connections are cut at random bytes,
// subscribers come, go, dawdle and change their topics, and the daemon is stopped,
// killed and started again. Of some topics the daemon asks an application about each
// message, which changes some and refuses others; and a few publishers reach limits.
//
// Its parts know little of each other. What is published goes into the ledger
// with the position that the daemon answered; what a subscriber sees of a topic
// goes into a trail; the judge compares the two when all is over. What is staged
// (publishers, subscribers, proxy, restarts) never judges, and the judge needs no
// network, so its tests write ledgers and trails by hand.
package soak
