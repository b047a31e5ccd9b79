// Command promtest writes the dashboard.
package main

func main() {}
