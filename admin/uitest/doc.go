// Package uitest tests the web page of the relay in a real browser: Debian's chromium, driven by chromedp. It
// is a module of its own, so that the product does not depend on chromedp.
//
// "make ui-test" builds the relay, and installs chromium if it can.
package uitest
