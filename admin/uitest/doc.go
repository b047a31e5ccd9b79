// Package uitest tests the web page of the relay in a real browser: Debian's chromium, driven by
// chromedp. It is a module of its own, so that the product does not get what drives browsers.
//
// "make ui-test" builds the relay, and installs chromium where it may.
package uitest
