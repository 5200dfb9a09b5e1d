// Pictures of the camera.  On a phone, and where the page may not use a camera (without TLS, or because
// the user forbids it), the browser's chooser of files offers what takes one.

const NAME = "camera.jpg";
const find = (id) => document.getElementById(id);

export class Camera {
  #stream = null;
  #took;

  // `took(file)` gets each picture.
  constructor(took) {
    this.#took = took;
    find("camera").addEventListener("click", () => this.#open());
    find("take").addEventListener("click", () => this.#take());
    find("viewfinder-close").addEventListener("click", () => find("viewfinder").close());
    find("viewfinder").addEventListener("close", () => this.#stop());
    find("photo").addEventListener("change", () => {
      for (const file of find("photo").files) took(file);
      find("photo").value = "";
    });
  }

  async #open() {
    const isPhone = matchMedia("(pointer: coarse)").matches;
    if (isPhone || !navigator.mediaDevices) return find("photo").click();
    try {
      this.#stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1920 }, height: { ideal: 1080 } } });
    } catch {
      return find("photo").click();
    }
    find("seen").srcObject = this.#stream;
    find("viewfinder").showModal();
  }

  #take() {
    const { videoWidth: width, videoHeight: height } = find("seen");
    if (!width) return; // nothing is seen yet
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width, height });
    canvas.getContext("2d").drawImage(find("seen"), 0, 0);
    canvas.toBlob((blob) => this.#took(new File([blob], NAME, { type: blob.type })), "image/jpeg", 0.9);
    find("viewfinder").close();
  }

  #stop() {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = null;
    find("seen").srcObject = null;
  }
}
