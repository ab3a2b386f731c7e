// Browsers refuse workers on pages from the file system. There the theme's search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.scope = new Promise((resolve) => {
        frame.onload = () => {
          frame.onload = null;
          const scope = frame.contentWindow;
          scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = scope.document.createElement("script");
          script.src = url;
          script.onload = () => resolve(scope);
          scope.document.body.append(script);
        };
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
