package downstream
import ("testing";"net";"fmt";"time";"golang.org/x/net/http2")
func TestDbg(t *testing.T){
 r:=startRelay(t,true)
 r.put(se("shop","a","b"))
 var conn net.Conn
 dbgConn=func(c net.Conn){conn=c}
 r.deaf(seV1)
 f:=http2.NewFramer(nil,conn)
 conn.SetReadDeadline(time.Now().Add(2*time.Second))
 for { fr,err:=f.ReadFrame(); if err!=nil {fmt.Println(err);break}; fmt.Println(fr); if g,ok:=fr.(*http2.GoAwayFrame);ok{fmt.Println(string(g.DebugData()))} }
}
