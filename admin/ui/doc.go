// Package ui is the web page of a relay, at /ui/ of its admin address: it makes each page from what
// small functions tell, and writes it as HTML that works without JavaScript. Where a browser has
// JavaScript, the page renews itself when something it shows has changed.
//
// The page shows and never acts: an action is the command that does it. Only requests of "relay ui"
// over the Unix socket get forms, which "relay ui" itself answers.
//
// Pages are pure functions of what they are given: see Page. The package must not know where the data
// comes from, nor who may see it: package admin lets requests through.
package ui
