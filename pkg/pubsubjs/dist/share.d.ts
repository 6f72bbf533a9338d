import type { Http } from "./http.js";
import type { Feed, Host, Session, Want } from "./session.js";
export declare class Shared implements Feed {
    #private;
    readonly positions: Map<string, string>;
    readonly started: Map<string, Want>;
    constructor(http: Http, key: string, host: Host, open: (host: Host, positions: Map<string, string>) => Session, onSession: (session: Session | undefined) => void);
    update(): void;
    check(): void;
    leave(forGood?: boolean): void;
}
