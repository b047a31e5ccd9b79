// Package ui is the web page of a relay, at /ui/ of its admin address. Small functions give it data; it
// makes a page of that, and writes the page as HTML that works without JavaScript. With JavaScript, the
// page renews itself when something that it shows has changed.
//
// The page shows and never acts: an action is the command that does it. Only requests of "relay ui"
// over the Unix socket get forms, which "relay ui" itself answers.
//
// Pages are pure functions of what they are given: see Page. The package must not know where the data
// comes from, nor who may see it: package admin lets requests through.
package ui
